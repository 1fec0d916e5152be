// What the host side of batched_mma (list.h, variants.cc) and its CUDA side share: configurations, how a problem is
// scheduled, the launcher.
#pragma once

#include "core/problem.h"

namespace hgemm::batched_mma {

/// What a kernel is made for: the largest M and N, step of K, warp tile, stages, problems of a block, blocks of an SM.
template <int BM_, int BN_, int BK_, int WM_, int WN_, int STAGES_, int PROBLEMS_, int RESIDENT_>
struct Config {
  static constexpr int BM = BM_, BN = BN_, BK = BK_, WM = WM_, WN = WN_, STAGES = STAGES_;
  static constexpr int PROBLEMS = PROBLEMS_, RESIDENT = RESIDENT_;
  static constexpr int kWarpsM = BM / WM, kWarps = kWarpsM * (BN / WN);  // of one problem
  static constexpr int kThreads = 32 * kWarps * PROBLEMS;
  static constexpr int kSumRows = 16, kSumRow = WN + 8;  // floats; the pad keeps the fragment stores conflict-free
  static constexpr int kSumBytes = kSumRows * kSumRow * 4;
  /// Bytes of an operand's step in shared memory; unaligned, rows keep their offset from whole words.
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

/// Whether both operands consist of whole aligned 16-byte chunks.
inline bool is_wide(const Problem& p) {
  return alignment_a(p) == 16 && alignment_b(p) == 16 && (p.a_major() == Major::kK ? p.k : p.m) % 8 == 0 &&
         (p.b_major() == Major::kK ? p.k : p.n) % 8 == 0;
}

struct Schedule {
  int blocks;      // each takes every blocks-th PROBLEMS of the batch
  bool dependent;  // the device has programmatic dependent launch
};

/// Enqueues the GEMM. launch.cuh defines it, instances.cu instantiates it for each kernel of list.h.
template <class Config, DType kDType>
Status launch(const Problem& p, const Schedule& s, Stream stream);

}  // namespace hgemm::batched_mma
