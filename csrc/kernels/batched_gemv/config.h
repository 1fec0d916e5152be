// What the host side of batched_gemv (list.h, variants.cc) and its CUDA side share: configurations, the schedule of a
// launch, the launcher.
#pragma once

#include "core/problem.h"
#include "core/short_side.h"

namespace hgemm::batched_gemv {

constexpr int kMostWarps = 8;  // of a block
constexpr int kFewRows = 2;    // K-major W: rows of a lane where there are too few rows to fill the GPU

/// The constants of a kernel: 16-byte loads that a thread has in flight, and blocks per SM.
template <int LOADS_, int BLOCKS_>
struct Config {
  static constexpr int LOADS = LOADS_, BLOCKS = BLOCKS_;
  static_assert(LOADS % kFewRows == 0 && (LOADS & (LOADS - 1)) == 0, "sums are halved");
};

/// Loads that a thread has in flight. Narrow ones hold fewer registers.
constexpr int loads_of(int loads, int bytes) {
  return bytes == 16 ? loads : 2 * loads;
}

/// How a launch divides the matrices among warps and lanes. A team is one warp or several of a block. It computes a
/// tile: `width` results of one matrix.
struct Schedule {
  /// Bytes of a load of W: 16, or 4 in float32 with a K-major W. A chunk is what one load reads.
  int bytes;

  /// Chunks of x may be loaded whole.
  bool wide_x;

  /// Lanes of a warp that lie along K (K-major) or along the rows (MN-major). A power of two.
  int lanes;

  /// K-major: rows of W of a lane.
  int rows;

  /// Warps of a team, which share K, and teams of a block.
  int warps, teams;

  /// Results of a tile, tiles of a matrix and of the whole batch, blocks.
  int width, tiles;
  int64_t all_tiles, blocks;

  /// Times that a warp loads as much as it keeps in flight.
  int64_t rounds;

  /// The device has programmatic dependent launch.
  bool dependent;
};

/// Enqueues the products and returns a cudaError_t. launch.cuh defines the function; instances.cu instantiates it for
/// each kernel of list.h.
template <class Config, DType kDType>
Status launch(const Problem& p, const Schedule& s, Stream stream);

}  // namespace hgemm::batched_gemv
