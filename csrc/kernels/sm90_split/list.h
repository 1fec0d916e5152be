// The kernels of sm90_split, one line each: this is where a kernel is declared.
//
// A line holds a Config: the columns of a block's tile, which has 128 rows; the number of pipeline stages; the blocks
// of a cluster along M, which share B; two planes instead of three.
//
// A stage holds three planes of 64 k of both operands, 98 KB for 128 columns. Two stages fill an SM's shared memory.
// They are enough, because six plane products are computed from each. Tiles of 64 columns are for C of few tiles. Two
// planes fill the same memory with more stages.
//
// A kernel over two planes is launched together with the one over three that has the same columns (variants.cc).
#pragma once

#include <tuple>

#include "kernels/sm90_split/config.h"

namespace hgemm::sm90_split {

template <class Config>
struct Kernel {
  double rate;  // share of the chip's wgmma rate, at the clock of core/chip.h, that timings on an H200 fit best
};

constexpr std::tuple kKernels{
    Kernel<Config<128, 2, 2>>{.rate = 0.98},
    Kernel<Config<64, 3, 1>>{.rate = 0.85},
    Kernel<Config<128, 3, 2, 2>>{.rate = 0.75},
    Kernel<Config<64, 4, 1, 2>>{.rate = 0.62},
};

}  // namespace hgemm::sm90_split
