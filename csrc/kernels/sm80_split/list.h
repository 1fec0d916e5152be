// The kernels of sm80_split, one line each: this is where a kernel is declared.
//
// A line holds a Config: BM, BN, stages. A stage holds three planes of 32 k of both operands. Three stages for a 64x64
// tile fit in the 99 KB of shared memory of sm_86 and sm_89.
#pragma once

#include <tuple>

#include "kernels/sm80_split/config.h"

namespace hgemm::sm80_split {

template <class Config>
struct Kernel {
  /// The share of the chip's mma.sync rate (Chip::mma_flops, at Chip::clock_ghz) that the main loop reaches: the value
  /// that fits timings on an H200 best.
  double rate;
};

constexpr std::tuple kKernels{
    Kernel<Config<64, 64, 3>>{.rate = 0.63},
};

}  // namespace hgemm::sm80_split
