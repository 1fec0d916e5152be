// What the host side of sm80_mma (list.h, variants.cc) and its CUDA side share: configurations and the launcher.
#pragma once

#include <algorithm>

#include "core/problem.h"
#include "core/slices.h"

namespace hgemm::sm80_mma {

/// How a kernel handles operands whose rows do not consist of whole aligned 16-byte chunks.
enum class Unaligned {
  kPad,     // it does not take them; a separate variant, `_pad`, first makes padded copies (tile/pad.h)
  kNarrow,  // it reads them where they lie, in 32-bit words, through registers
};

/// The constants of a kernel: output tile (BM, BN) and k-tile BK of a block, the part (WM, WN) of the output tile that
/// a warp computes, and pipeline stages.
template <int BM_, int BN_, int BK_, int WM_, int WN_, int STAGES_, Unaligned kUnaligned_>
struct Config {
  static constexpr Unaligned kUnaligned = kUnaligned_;
  static constexpr int BM = BM_, BN = BN_, BK = BK_, WM = WM_, WN = WN_, STAGES = STAGES_;
  static constexpr int kWarpsM = BM / WM, kWarpsN = BN / WN;
  static constexpr int kThreads = 32 * kWarpsM * kWarpsN;
  static constexpr bool kCarries = false;
  static constexpr int kStageBytes = (BM + BN) * BK * 2;
  // Row pitch of the epilogue's scratch in floats. The padding keeps the fragment stores free of bank conflicts.
  static constexpr int kEpilogueRow = WN + 8;
  static constexpr int epilogue_bytes(int rows) { return kWarpsM * kWarpsN * rows * kEpilogueRow * 4; }
  /// Rows of its accumulators that a warp passes through shared memory at a time in the epilogue.
  static constexpr int kEpilogueRows = WM % 64 == 0 && epilogue_bytes(64) <= STAGES * kStageBytes   ? 64
                                       : WM % 32 == 0 && epilogue_bytes(32) <= STAGES * kStageBytes ? 32
                                                                                                    : 16;
  static constexpr int kSmemBytes = std::max(STAGES * kStageBytes, epilogue_bytes(kEpilogueRows));
  static_assert(BM % WM == 0 && BN % WN == 0 && WM % 16 == 0 && WN % 16 == 0);
  static_assert(BK % 32 == 0, "the pipeline needs two k16 steps per tile");
  static_assert(STAGES >= 3, "one stage is read, one is freed, the rest are in flight");
};

/// A Config whose kernel adds its accumulators to sums in float32 registers, and starts again from zero: every
/// kCarriedK k (Sums::kCarried), or at the end of each of four slices of K (Sums::kFourSlices).
template <class Base>
struct Carried : Base {
  static constexpr bool kCarries = true;
  static_assert(kCarriedK % Base::BK == 0);
};

/// True if A (or B) consists of whole aligned 16-byte chunks, so that the kernel can copy it with 16-byte cp.async.
inline bool is_wide_a(const Problem& p) {
  return alignment_a(p) == 16 && (p.a_major() == Major::kK ? p.k : p.m) % 8 == 0;
}
inline bool is_wide_b(const Problem& p) {
  return alignment_b(p) == 16 && (p.b_major() == Major::kK ? p.k : p.n) % 8 == 0;
}

/// The choices of one launch.
struct Schedule {
  /// Slices of K (split-K). Above one, the workspace is (splits, batches, m, n) floats.
  int splits = 1;

  /// A Carried kernel adds its accumulators to the sums at the end of each slice of K (core/slices.h), not every
  /// kCarriedK k.
  bool in_slices = false;

  /// Operands that were not wide have been replaced by padded copies (tile/pad.h).
  bool padded = false;
};

/// Enqueues the GEMM and returns a cudaError_t. `workspace` is not used where splits is 1. launch.cuh defines the
/// function; instances.cu instantiates it for each kernel of list.h.
template <class Config, DType kDType>
Status launch(const Problem& p, Schedule schedule, void* workspace, Stream stream);

}  // namespace hgemm::sm80_mma
