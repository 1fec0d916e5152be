// Shared by the host side of sm90_skinny (list.h, variants.cc) and its CUDA side: configurations, the schedule of a
// problem, and the launcher.
#pragma once

#include <algorithm>

#include "core/problem.h"

namespace hgemm::sm90_skinny {

/// The number of a tile's warps whose sums one block of the cluster finishes. If there are more blocks than warps, the
/// first blocks finish one warp each.
constexpr int finished_warps(int warps, int splits) {
  return warps > splits ? warps / splits : 1;
}

/// The rows of a tile of an MN-major W where tiles of 64 rows would be few.
constexpr int kNarrowRows = 32;

/// Bytes of shared memory that CUDA reserves for each block on an SM.
constexpr int kReservedSmem = 1024;

/// The compile-time parameters of a kernel: rows of W in a tile, rows of x, panels (64 wide along K) in a stage, the
/// size of the ring in KB, and the 64-row parts of W that a warpgroup multiplies. `kTilesX_`: see Tiled.
template <int ROWS_, int COLS_, int PANELS_, int RING_, int PARTS_ = 1, bool kTilesX_ = false>
struct Config {
  static constexpr bool kTilesX = kTilesX_;
  static constexpr int ROWS = ROWS_, COLS = COLS_, PANELS = PANELS_, PARTS = PARTS_;
  static constexpr int BK = 64 * PANELS;
  // Warpgroups: kGroups along the rows of W by kColGroups along those of x. Two parts leave registers for 64 rows of x.
  static constexpr int kGroups = ROWS / (64 * PARTS), kColGroups = PARTS > 1 && COLS > 64 ? COLS / 64 : 1;
  static constexpr int kWarpRows = 16 * PARTS, kWarpCols = COLS / kColGroups;
  static constexpr int kWarps = 4 * kGroups * kColGroups;  // multiplying warps
  static constexpr int kThreads = (kWarps + 1) * 32;       // with the warp that loads
  static constexpr int kMaxStages = 32;
  // Arrivals that complete a phase of the mbarriers (the table in kernel.cuh).
  static constexpr int kFullArrivals = 1;        // of the loading thread, with the bytes to come
  static constexpr int kEmptyArrivals = kWarps;  // of each warp that has read the stage
  static constexpr int kSummedArrivals = 1;      // of the finishing warp, with the bytes to come
  static constexpr int kRingBytes = RING_ * 1024;
  // A patch is a warp's buffer in which sums are transposed for the epilogue: kPatchCols lines of kPatchStride floats.
  static constexpr int kPatchCols = COLS < 16 || PARTS > 1 ? 8 : 16;
  // In floats. The padding keeps the fragment stores of 16 rows free of bank conflicts.
  static constexpr int kPatchStride = kWarpRows + 4;
  static constexpr int kPatchBytes = kPatchCols * kPatchStride * 4;
  static constexpr int kSumBytes = kWarpRows * kWarpCols * 4;  // a warp's sums
  // The largest number of slices of K. The sums that other blocks send need shared memory beside the ring.
  static constexpr int kMaxSplits = kGroups > 1 ? 2 : COLS == 32 || PARTS > 1 || kTilesX ? 4 : 8;
  // Behind the ring lie the mbarriers: full, empty, and one for each warp whose sums the block finishes. Behind these
  // lie, for each such warp, a patch and the buffer for the other blocks' sums.
  static constexpr int kFinishAt = kRingBytes + (2 * kMaxStages + kWarps) * 8;
  static constexpr int kOneSplit = kWarps * kPatchBytes;
  static constexpr int kTwoSplits = finished_warps(kWarps, 2) * (kPatchBytes + kSumBytes);
  static constexpr int kMostSplits = finished_warps(kWarps, kMaxSplits) * (kPatchBytes + (kMaxSplits - 1) * kSumBytes);
  static constexpr int kSmemBytes = kFinishAt + std::max({kOneSplit, kTwoSplits, kMostSplits});
  static constexpr bool kFillsSm = 2 * (kSmemBytes + kReservedSmem) > 228 * 1024;  // no second block on an SM
  // True if the kernel exists with a ring that fills an SM as well (Deep). The deep kernel for 16 columns is as fast as
  // one for 8 would be.
  static constexpr bool kHasDeep = !kFillsSm && COLS > 8;
  // A panel of an MN-major x has lines of all columns, and a swizzled line is at most 128 bytes.
  static constexpr bool kTakesMnMajorX = COLS <= 64;
  // Groups of wgmma that may be in flight at the end of a k-tile. With one, the tensor cores do not wait for the next
  // stage. With none, a stage is released at once, which gains more where a stage is multiplied quickly and the ring
  // has few stages.
  static constexpr int kInFlight = COLS >= 64 || (kGroups == 1 && kFillsSm) ? 1 : 0;
  static_assert(ROWS % (64 * PARTS) == 0);
  static_assert(2 * PANELS * (COLS + ROWS) * 128 <= kRingBytes, "one stage is read, the others are in flight");
};

/// A kernel for more rows of x than a tile has. The tiles of x are a dimension of the grid, and W is read once for each
/// of them. With K's order in each sum, as batch-invariant numerics require it, many small tiles with deep rings are
/// what keeps all SMs busy where D is small.
template <int ROWS, int COLS, int PANELS, int RING>
using Tiled = Config<ROWS, COLS, PANELS, RING, 1, true>;

/// The same kernel with a ring that fills an SM, for Schedule::deep.
template <class C>
using Deep = Config<C::ROWS, C::COLS, C::PANELS, 216, C::PARTS>;

/// When the next kernel of the stream may start.
enum class Release {
  kAtOnce,
  kWithLastLoads,  // when the stages that are left to load fit the ring
  kWithLastSums,   // when the main loop of the block's last tile has ended
};

/// How W is divided: into tiles of `tile_rows` rows, and each tile into `splits` slices of K. The tiles of one matrix
/// of the batch, and of one tile of x, are distributed over `blocks` blocks (with slices over as many clusters, of one
/// tile each).
struct Schedule {
  int tile_rows;  // a multiple of 8; for an MN-major W of 64, or, with a deep ring, kNarrowRows
  int splits, blocks;
  int x_tiles;   // of COLS rows of x; 1 unless the kernel is a Tiled one
  bool deep;     // with a ring that fills an SM (Deep)
  int prefetch;  // stages of W that are prefetched to L2 while the kernels before this one still run
  Release release;
};

/// Enqueues the GEMM. launch.cuh defines the function, instances.cu instantiates it for each kernel of list.h.
/// Schedule::deep needs a kernel for more than 8 columns.
template <class Config, DType kDType>
Status launch(const Problem& p, const Schedule& s, Stream stream);

/// Enqueues an int8 product, counted in pairs (tile/int8_operands.h). launch.cuh defines the function,
/// int8_instances.cu instantiates it for each kernel of int8_list.h.
template <class Config>
Status launch_int8(const Problem& pairs, const Schedule& s, Stream stream);

}  // namespace hgemm::sm90_skinny
