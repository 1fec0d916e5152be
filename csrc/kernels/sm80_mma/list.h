// The kernels of sm80_mma, one line each: this is where a kernel is declared.
//
// A line holds a Config (block tile, warp tile, ring depth, how unaligned operands are taken) and what Kernel says.
//
// 128x128 with four warps of 64x64 is the fastest on a warm H200: two blocks share an SM and cover each other's
// barriers and epilogues; 96 KB also fit one block on sm_86/89. K steps of 64: every row of a K-major tile is a whole
// 128-byte line. With warps of 64x32 half the accumulators leave room for the registers that unaligned operands pass
// through (at 64x64 they spill). 64x64 fills the chip when C is small. 16x128 and 128x16 waste no tensor work on skinny
// outputs (decode, small N) and live off split-K.
#pragma once

#include <tuple>

#include "kernels/sm80_mma/config.h"

namespace hgemm::sm80_mma {

template <class Config>
struct Kernel {
  bool splits_k;  // there is a split-K variant as well
  double rate;    // steady-state share of the chip's mma.sync rate, measured on the H200 at 8192^3
};

constexpr std::tuple kKernels{
    Kernel<Config<128, 128, 64, 64, 64, 3, Unaligned::kPad>>{.splits_k = false, .rate = 0.71},
    Kernel<Config<128, 128, 32, 64, 32, 4, Unaligned::kNarrow>>{.splits_k = true, .rate = 0.50},
    Kernel<Config<64, 64, 64, 32, 32, 3, Unaligned::kNarrow>>{.splits_k = true, .rate = 0.42},
    Kernel<Config<16, 128, 64, 16, 32, 4, Unaligned::kNarrow>>{.splits_k = true, .rate = 0.23},
    Kernel<Config<128, 16, 64, 32, 16, 4, Unaligned::kNarrow>>{.splits_k = true, .rate = 0.22},
};

}  // namespace hgemm::sm80_mma
