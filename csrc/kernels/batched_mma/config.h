// What the host side of batched_mma (list.h, variants.cc) and its CUDA side share: configurations, the schedule of a
// launch, the launcher.
#pragma once

#include "core/problem.h"

namespace hgemm::batched_mma {

/// The constants of a kernel: the largest M and N (BM, BN), the k-tile BK, the part (WM, WN) of D that a warp computes,
/// pipeline stages, problems (matrices of the batch) that a block works on at a time, and blocks per SM that the
/// registers are limited for.
template <int BM_, int BN_, int BK_, int WM_, int WN_, int STAGES_, int PROBLEMS_, int RESIDENT_>
struct Config {
  static constexpr int BM = BM_, BN = BN_, BK = BK_, WM = WM_, WN = WN_, STAGES = STAGES_;
  static constexpr int PROBLEMS = PROBLEMS_, RESIDENT = RESIDENT_;
  static constexpr bool kIsAlwaysNarrow = false;
  static constexpr int kWarpsM = BM / WM, kWarps = kWarpsM * (BN / WN);  // warps per problem
  static constexpr int kThreads = 32 * kWarps * PROBLEMS;
  // The epilogue's scratch of a warp: rows, and their pitch in floats. The padding keeps the fragment stores free of
  // bank conflicts.
  static constexpr int kSumRows = 16, kSumRow = WN + 8;
  static constexpr int kSumBytes = kSumRows * kSumRow * 4;
  /// Bytes of an operand's k-tile in shared memory. `narrow`: the operands are not wide; rows then need more space,
  /// since they keep their offset from a 32-bit word boundary.
  static constexpr int step_bytes(int extent, Major major, bool narrow) {
    return 2 * extent * BK + (narrow ? 16 * (major == Major::kK ? extent : BK) : 0);
  }
  static constexpr int smem_bytes(Major a, Major b, bool narrow) {
    return PROBLEMS * (STAGES * (step_bytes(BM, a, narrow) + step_bytes(BN, b, narrow)) + kWarps * kSumBytes);
  }
  static_assert(BM % WM == 0 && BN % WN == 0 && WM % 16 == 0 && WN % 16 == 0 && BK % 16 == 0);
  static_assert(STAGES >= 2, "one is read while others arrive");
  static_assert(PROBLEMS == 1 || kWarps == 1, "the warps of a problem meet at the block's barrier");
};

/// A Config whose kernel reads wide operands as it reads others. It saves the time to compile a kernel for wide ones.
template <class Base>
struct AlwaysNarrow : Base {
  static constexpr bool kIsAlwaysNarrow = true;
};

/// True if both operands consist of whole aligned 16-byte chunks.
inline bool is_wide(const Problem& p) {
  return alignment_a(p) == 16 && alignment_b(p) == 16 && (p.a_major() == Major::kK ? p.k : p.m) % 8 == 0 &&
         (p.b_major() == Major::kK ? p.k : p.n) % 8 == 0;
}

/// The choices of one launch.
struct Schedule {
  /// Blocks of the grid. Together they work on blocks * PROBLEMS consecutive problems at a time.
  int blocks;

  /// The device has programmatic dependent launch.
  bool dependent;
};

/// Enqueues the GEMM and returns a cudaError_t. launch.cuh defines the function; instances.cu instantiates it for each
/// kernel of list.h.
template <class Config, DType kDType>
Status launch(const Problem& p, const Schedule& s, Stream stream);

}  // namespace hgemm::batched_mma
