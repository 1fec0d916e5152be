// What the host side of gemv (list.h, variants.cc) and its CUDA side share: configurations, how a problem is scheduled,
// the launcher.
#pragma once

#include "core/problem.h"
#include "core/short_side.h"

namespace hgemm::gemv {

constexpr int kWarps = 8, kThreads = 32 * kWarps;
constexpr int kLoads = 4;  // 16-byte chunks of W in a unit: rows of it (K-major), k (MN-major)

/// k that the warps of a block which share rows, or columns, go through in a unit each.
constexpr int unit_k(bool k_major, int lanes, int warps) {
  return k_major ? 8 * lanes * warps : kLoads * kWarps * (32 / lanes);
}

/// What a kernel is made for: rows of x; loads in flight and blocks of an SM, W K-major and MN-major; k of x.
template <int COLS_, int DEPTH_K_, int BLOCKS_K_, int DEPTH_MN_, int BLOCKS_MN_, int SLICE_>
struct Config {
  static constexpr int COLS = COLS_;
  static constexpr int kDepthK = DEPTH_K_, kBlocksK = BLOCKS_K_;
  static constexpr int kDepthMN = DEPTH_MN_, kBlocksMN = BLOCKS_MN_;
  static constexpr int kSlice = SLICE_;
  // Sums of the warps of a block: of 8 x 32 rows, MN-major, with a pitch of 36; K-major tiles are cut to fit.
  static constexpr int kSumFloats = kWarps * COLS * 8 * 36;
  static constexpr int kSmemBytes = COLS * kSlice * 2 + kSumFloats * 4;
};

/// How W is divided: into tiles of `tile_rows` rows, each into `slices` of `slice_k` k. In an
/// unaligned K-major W every eighth row has the same offset from a multiple of 16 bytes: a tile then holds every eighth
/// row, and eight tiles together hold neighbouring rows.
struct Schedule {
  int lanes;   // of a warp that lie along K (K-major) or along the rows (MN-major); a power of two
  int warps;   // K-major: of a block that share a row; a power of two
  int passes;  // K-major: rows that a warp goes through, in units
  int tile_rows, slice_k, slices;
  int64_t tiles;
  bool dependent;       // the device has programmatic dependent launch
  bool releases_early;  // the next kernel may start before all blocks of this one have ended
};

/// Enqueues the GEMM; `workspace` holds slices x tiles x tile_rows x COLS floats for each batch, if there are slices.
/// launch.cuh defines it, instances.cu instantiates it for each kernel of list.h.
template <class Config, DType kDType>
Status launch(const Problem& p, const Schedule& s, void* workspace, Stream stream);

}  // namespace hgemm::gemv
