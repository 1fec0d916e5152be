// The kernels of sm80_split, one line each: this is where a kernel is declared.
//
// A line holds a Config: block tile, ring depth. A stage holds three planes of 32 k of both operands: three of 64x64
// fit in the 99 KB of sm_86 and sm_89.
#pragma once

#include <tuple>

#include "kernels/sm80_split/config.h"

namespace hgemm::sm80_split {

template <class Config>
struct Kernel {
  double rate;  // share of the chip's mma.sync rate, at the clock of core/chip.h, that timings on an H200 fit best
};

constexpr std::tuple kKernels{
    Kernel<Config<64, 64, 3>>{.rate = 0.63},
};

}  // namespace hgemm::sm80_split
