// What the host side of gemv (list.h, variants.cc) and its CUDA side share: configurations, the schedule of a launch,
// the launcher.
#pragma once

#include "core/problem.h"
#include "core/short_side.h"

namespace hgemm::gemv {

constexpr int kWarps = 8, kThreads = 32 * kWarps;
// A unit is what a thread loads of W at a time: kLoads chunks of 16 bytes, from different rows (K-major) or at
// different k (MN-major).
constexpr int kLoads = 4;

/// The number of k that one unit of each warp covers, together, of the warps of a block that share the same rows of W.
constexpr int unit_k(bool k_major, int lanes, int warps) {
  return k_major ? 8 * lanes * warps : kLoads * kWarps * (32 / lanes);
}

/// The constants of a kernel: rows of x; units of loads in flight and blocks per SM, for a K-major and for an MN-major
/// W; k of x that a block keeps in shared memory.
template <int COLS_, int DEPTH_K_, int BLOCKS_K_, int DEPTH_MN_, int BLOCKS_MN_, int SLICE_>
struct Config {
  static constexpr int COLS = COLS_;
  static constexpr int kDepthK = DEPTH_K_, kBlocksK = BLOCKS_K_;
  static constexpr int kDepthMN = DEPTH_MN_, kBlocksMN = BLOCKS_MN_;
  static constexpr int kSlice = SLICE_;
  // Floats for the sums of a block's warps. With an MN-major W these are 8 x 32 rows, with a pitch of 36. K-major tiles
  // are chosen small enough to fit.
  static constexpr int kSumFloats = kWarps * COLS * 8 * 36;
  static constexpr int kSmemBytes = COLS * kSlice * 2 + kSumFloats * 4;
};

/// How a launch divides W among blocks, warps and lanes. In an unaligned K-major W every eighth row has the same offset
/// from a 16-byte boundary. A tile then consists of every eighth row, and eight tiles together cover neighbouring rows.
struct Schedule {
  /// Lanes of a warp that lie along K (K-major) or along the rows (MN-major). A power of two.
  int lanes;

  /// K-major: warps of a block that share a row. A power of two.
  int warps;

  /// K-major: groups of rows that a warp computes one after the other.
  int passes;

  /// Rows of W in a tile, k in a slice, and the number of slices of K.
  int tile_rows, slice_k, slices;

  /// The number of tiles of W.
  int64_t tiles;

  /// The device has programmatic dependent launch.
  bool dependent;

  /// The next kernel of the stream may start before all blocks of this one have ended.
  bool releases_early;
};

/// Enqueues the GEMM and returns a cudaError_t. With more than one slice, `workspace` holds (batches, tiles, slices,
/// COLS, tile_rows) floats. launch.cuh defines the function; instances.cu instantiates it for each kernel of list.h.
template <class Config, DType kDType>
Status launch(const Problem& p, const Schedule& s, void* workspace, Stream stream);

}  // namespace hgemm::gemv
