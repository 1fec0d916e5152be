// The kernels of sm80_mma, one line each: this is where a kernel is declared.
//
// A line holds a Config (BM, BN, BK, WM, WN, stages, how unaligned operands are read) and the fields of Kernel.
//
// Why these tiles:
//  - 128x128 with four warps of 64x64 is the fastest on a warm H200. Two blocks share an SM and hide each other's
//    barriers and epilogues. Its 96 KB of shared memory also fit one block on sm_86 and sm_89. With k-tiles of 64 every
//    row of a K-major tile is a whole 128-byte line. It has no registers left for the words of unaligned operands.
//  - 64x64 gives enough blocks to fill the chip when C is small.
//  - 16x128 and 128x16 do not waste tensor-core work on skinny outputs (decode, small N). They depend on split-K for
//    enough blocks.
//
// The Carried kernel runs where a batch-invariant sum has a float32 result, and no kernel for Hopper takes the
// operands. Its k-tiles of 32 compile in half the time of those of 64.
//
// Left out: Config<128, 128, 32, 64, 32, 4, Unaligned::kNarrow>, split-K as well, rate 0.50 (NOTES.md, the first line).
#pragma once

#include <tuple>

#include "kernels/sm80_mma/config.h"

namespace hgemm::sm80_mma {

template <class Config>
struct Kernel {
  /// There is a split-K variant of the kernel as well.
  bool splits_k;

  /// There is a variant with slices of kCarriedK k as well, whose sums are added in their order (Sums::kCarried).
  bool carries_slices;

  /// The share of the chip's mma.sync rate (Chip::mma_flops) that the main loop reaches in the steady state, measured
  /// on the H200 at 8192^3.
  double rate;
};

constexpr std::tuple kKernels{
    Kernel<Config<128, 128, 64, 64, 64, 3, Unaligned::kPad>>{.splits_k = false, .carries_slices = false, .rate = 0.71},
    Kernel<Config<64, 64, 64, 32, 32, 3, Unaligned::kNarrow>>{.splits_k = true, .carries_slices = true, .rate = 0.42},
    Kernel<Config<16, 128, 64, 16, 32, 4, Unaligned::kNarrow>>{.splits_k = true, .carries_slices = true, .rate = 0.23},
    Kernel<Config<128, 16, 64, 32, 16, 4, Unaligned::kNarrow>>{.splits_k = true, .carries_slices = false, .rate = 0.22},
    Kernel<Carried<Config<64, 64, 32, 32, 32, 4, Unaligned::kNarrow>>>{
        .splits_k = false, .carries_slices = false, .rate = 0.31},
};

}  // namespace hgemm::sm80_mma
