// What the host side of sm80_mma (list.h, variants.cc) and its CUDA side share: configurations and the launcher.
#pragma once

#include <algorithm>

#include "core/problem.h"

namespace hgemm::sm80_mma {

/// How a kernel takes operands whose rows are not whole aligned 16-byte chunks.
enum class Unaligned {
  kPad,     // not at all: a variant of its own makes padded copies first (tile/pad.h)
  kNarrow,  // as they are, through registers
};

/// What a kernel is made for: block tile, warp tile, ring depth.
template <int BM_, int BN_, int BK_, int WM_, int WN_, int STAGES_, Unaligned kUnaligned_>
struct Config {
  static constexpr Unaligned kUnaligned = kUnaligned_;
  static constexpr int BM = BM_, BN = BN_, BK = BK_, WM = WM_, WN = WN_, STAGES = STAGES_;
  static constexpr int kWarpsM = BM / WM, kWarpsN = BN / WN;
  static constexpr int kThreads = 32 * kWarpsM * kWarpsN;
  static constexpr int kStageBytes = (BM + BN) * BK * 2;
  static constexpr int kEpilogueRow = WN + 8;  // floats; the pad keeps the fragment stores conflict-free
  static constexpr int epilogue_bytes(int rows) { return kWarpsM * kWarpsN * rows * kEpilogueRow * 4; }
  /// Rows of its tile that a warp hands over at a time.
  static constexpr int kEpilogueRows = WM % 64 == 0 && epilogue_bytes(64) <= STAGES * kStageBytes   ? 64
                                       : WM % 32 == 0 && epilogue_bytes(32) <= STAGES * kStageBytes ? 32
                                                                                                    : 16;
  static constexpr int kSmemBytes = std::max(STAGES * kStageBytes, epilogue_bytes(kEpilogueRows));
  static_assert(BM % WM == 0 && BN % WN == 0 && WM % 16 == 0 && WN % 16 == 0);
  static_assert(BK % 32 == 0, "the pipeline needs two k16 steps per tile");
  static_assert(STAGES >= 3, "one stage is read, one is freed, the rest are in flight");
};

/// Whether an operand consists of whole 16-byte chunks, each aligned: the copies can then be cp.async.
inline bool is_wide_a(const Problem& p) {
  return alignment_a(p) == 16 && (p.a_major() == Major::kK ? p.k : p.m) % 8 == 0;
}
inline bool is_wide_b(const Problem& p) {
  return alignment_b(p) == 16 && (p.b_major() == Major::kK ? p.k : p.n) % 8 == 0;
}

struct Schedule {
  int splits = 1;       // slices of K; above one, `workspace` holds splits * batches * m * n floats
  bool padded = false;  // operands that were not wide have been replaced by padded copies (tile/pad.h)
};

/// Enqueues the GEMM. launch.cuh defines it, instances.cu instantiates it for each kernel of list.h.
template <class Config, DType kDType>
Status launch(const Problem& p, Schedule schedule, void* workspace, Stream stream);

}  // namespace hgemm::sm80_mma
