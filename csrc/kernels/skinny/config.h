// What the host side of skinny (list.h, variants.cc) and its CUDA side share: configurations, the schedule of a launch,
// the launcher.
#pragma once

#include "core/problem.h"
#include "core/short_side.h"

namespace hgemm::skinny {

/// The constants of a kernel: rows of x (COLS, since they are columns of W @ x^T), warps per block, and units of loads
/// that a warp keeps in flight, for a K-major and for an MN-major W (list.h says what a unit is).
template <int COLS_, int WARPS_, int DEPTH_K_, int DEPTH_MN_>
struct Config {
  static constexpr int COLS = COLS_, WARPS = WARPS_;
  static constexpr int kDepthK = DEPTH_K_, kDepthMN = DEPTH_MN_;
  static constexpr int kThreads = 32 * WARPS;
  static_assert(WARPS % 8 == 0, "unaligned, MN-major: a warp for each k modulo 8");
};

/// How a launch divides W among blocks.
struct Schedule {
  /// Rows of W in a tile, the number of tiles, and the slices of K that each tile is split into. The blocks of one
  /// tile's slices form a cluster.
  int tile_rows, tiles, splits;

  /// A tile consists of every eighth row, and eight tiles together cover neighbouring rows. In an unaligned K-major W
  /// every eighth row has the same offset from a 16-byte boundary.
  bool interleaved;

  /// The device has clusters and programmatic dependent launch.
  bool dependent;

  /// The next kernel of the stream may start before all blocks of this one have ended.
  bool releases_early;
};

/// Enqueues the GEMM and returns a cudaError_t. launch.cuh defines the function; instances.cu instantiates it for each
/// kernel of list.h.
template <class Config, DType kDType>
Status launch(const Problem& p, const Schedule& s, Stream stream);

}  // namespace hgemm::skinny
