// What the host side of sm90_skinny (list.h, variants.cc) and its CUDA side share: configurations, how a problem is
// scheduled, the launcher.
#pragma once

#include <algorithm>

#include "core/problem.h"

namespace hgemm::sm90_skinny {

/// The number of warps of a tile whose sums a block of the cluster finishes. If there are more blocks than warps, the
/// first blocks finish one each.
constexpr int finished_warps(int warps, int splits) {
  return warps > splits ? warps / splits : 1;
}

/// Bytes of an SM's shared memory that CUDA takes for each block.
constexpr int kReservedSmem = 1024;

/// What a kernel is made for: a tile of W, rows of x, panels of a stage, KB of ring.
template <int ROWS_, int COLS_, int PANELS_, int RING_>
struct Config {
  static constexpr int ROWS = ROWS_, COLS = COLS_, PANELS = PANELS_;
  static constexpr int BK = 64 * PANELS;
  static constexpr int kGroups = ROWS / 64;           // warpgroups
  static constexpr int kWarps = 4 * kGroups;          // that multiply
  static constexpr int kThreads = (kWarps + 1) * 32;  // another one loads
  static constexpr int kMaxStages = 32;
  // Arrivals that complete a phase of the mbarriers (the table in kernel.cuh).
  static constexpr int kFullArrivals = 1;        // the loading thread's, with the bytes to come
  static constexpr int kEmptyArrivals = kWarps;  // one of each warp that has read the stage
  static constexpr int kSummedArrivals = 1;      // the finishing warp's, with the bytes to come
  static constexpr int kRingBytes = RING_ * 1024;
  static constexpr int kPatchCols = COLS < 16 ? COLS : 16;
  static constexpr int kPatchStride = 16 + 4;  // floats; the pads keep the fragment stores conflict-free
  static constexpr int kPatchBytes = kPatchCols * kPatchStride * 4;
  static constexpr int kSumBytes = 16 * COLS * 4;  // a warp's sums
  // Slices of K, at most: what other blocks send of their sums needs room beside the ring.
  static constexpr int kMaxSplits = ROWS > 64 ? 2 : COLS == 32 ? 4 : 8;
  // Barriers: full, empty, and one for each warp that finishes. Then for each of these a patch and the others' sums.
  static constexpr int kFinishAt = kRingBytes + (2 * kMaxStages + kWarps) * 8;
  static constexpr int kOneSplit = kWarps * kPatchBytes;
  static constexpr int kTwoSplits = finished_warps(kWarps, 2) * (kPatchBytes + kSumBytes);
  static constexpr int kMostSplits = finished_warps(kWarps, kMaxSplits) * (kPatchBytes + (kMaxSplits - 1) * kSumBytes);
  static constexpr int kSmemBytes = kFinishAt + std::max({kOneSplit, kTwoSplits, kMostSplits});
  static constexpr bool kFillsSm = 2 * (kSmemBytes + kReservedSmem) > 228 * 1024;  // no second block on an SM
  // Whether there is one with a ring that fills an SM besides (Deep). With 16 columns it takes as long as with 8.
  static constexpr bool kHasDeep = !kFillsSm && COLS > 8;
  // Groups of WGMMA that may be in flight when a step ends. With one, the tensor cores do not wait for the next stage.
  // With none, a stage is given back at once, which is worth more where a stage is multiplied soon and the ring has
  // few.
  static constexpr int kInFlight = COLS >= 64 || (ROWS == 64 && kFillsSm) ? 1 : 0;
  static_assert(ROWS % 64 == 0);
  static_assert(2 * PANELS * (COLS + ROWS) * 128 <= kRingBytes, "one stage is read, the others are in flight");
};

/// The same with a ring that fills an SM, as Schedule::deep asks for.
template <class C>
using Deep = Config<C::ROWS, C::COLS, C::PANELS, 216>;

/// When the next kernel of the stream may start.
enum class Release {
  kAtOnce,
  kWithLastLoads,  // when all that is left to load fits the ring
  kWithLastSums,   // when the last main loop has ended
};

/// How W is divided: into tiles of `tile_rows` rows, each into `splits` slices of K. Each of `blocks` blocks computes a
/// part of the tiles of a batch; with slices, one tile.
struct Schedule {
  int tile_rows;  // a multiple of 8, MN-major of 64
  int splits, blocks;
  bool deep;     // with a ring that fills an SM (Deep)
  int prefetch;  // stages of W that are brought to L2 while the kernels before this one still run
  Release release;
};

/// Enqueues the GEMM. launch.cuh defines it, instances.cu instantiates it for each kernel of list.h. Schedule::deep
/// needs more than 8 columns.
template <class Config, DType kDType>
Status launch(const Problem& p, const Schedule& s, Stream stream);

}  // namespace hgemm::sm90_skinny
