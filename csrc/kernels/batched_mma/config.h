// What the host side of batched_mma (list.h, variants.cc) and its CUDA side share: configurations, the schedule of a
// launch, the launcher.
#pragma once

#include "core/problem.h"
#include "core/whole_batch.h"

namespace hgemm::batched_mma {

/// The constants of a kernel: the largest M and N (BM, BN), the k-tile BK, the part (WM, WN) of D that a warp computes,
/// pipeline stages, problems (matrices of the batch) that a block works on at a time, and blocks per SM that the
/// registers are limited for.
template <int BM_, int BN_, int BK_, int WM_, int WN_, int STAGES_, int PROBLEMS_, int RESIDENT_>
struct Config {
  static constexpr int BM = BM_, BN = BN_, BK = BK_, WM = WM_, WN = WN_, STAGES = STAGES_;
  static constexpr int PROBLEMS = PROBLEMS_, RESIDENT = RESIDENT_;
  static constexpr bool kIsAlwaysNarrow = false;
  static constexpr bool kTakesWhole = BM == 64;  // is_whole_batch() goes to the kernel of Whole64
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
  return has_whole_chunks(p);
}

/// The constants of a kernel that copies whole matrices (whole_kernel.cuh): the largest M, N and K (BM, BN, BK), the
/// part (WM, WN) of D that a warp computes, and blocks per SM that the registers are limited for.
template <int BM_, int BN_, int BK_, int WM_, int WN_, int RESIDENT_>
struct WholeConfig {
  static constexpr int BM = BM_, BN = BN_, BK = BK_, WM = WM_, WN = WN_, RESIDENT = RESIDENT_;
  static constexpr int kThreads = BM / WM * (BN / WN) * 32;
  static constexpr int kTileBytesA = 2 * BM * BK, kTileBytesB = 2 * BN * BK;
  // Spans begin and end inside of chunks of 16 bytes, and are read up to 16 bytes beyond their last chunk.
  static constexpr int kEdgeBytes = 48;
  static constexpr int kSpanBytesA = kTileBytesA + kEdgeBytes, kSpanBytesB = kTileBytesB + kEdgeBytes;
  static constexpr int kResultBytes = 2 * BM * BN + kEdgeBytes;
  static constexpr int kTileBytes = kTileBytesA + kTileBytesB > kResultBytes ? kTileBytesA + kTileBytesB : kResultBytes;
  static constexpr int kSmemBytes = kTileBytes + kSpanBytesA + kSpanBytesB;
};
using Whole64 = WholeConfig<kWholeSide, kWholeSide, kWholeK, 32, 32, 5>;

/// The choices of one launch.
struct Schedule {
  /// Blocks of the grid. Together they work on blocks * PROBLEMS consecutive problems at a time.
  int blocks;

  /// The kernel that copies whole matrices runs.
  bool whole;

  /// The device has programmatic dependent launch.
  bool dependent;
};

/// Enqueues the GEMM and returns a cudaError_t. launch.cuh defines the function; instances.cu instantiates it for each
/// kernel of list.h.
template <class Config, DType kDType>
Status launch(const Problem& p, const Schedule& s, Stream stream);

}  // namespace hgemm::batched_mma
