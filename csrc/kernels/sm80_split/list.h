// The kernels of sm80_split, one line each: this is where a kernel is declared.
//
// A line holds a Config: BM, BN, stages; two planes instead of three. A stage holds the planes of 32 k of both
// operands. Three stages of three planes for a 64x64 tile fit in the 99 KB of shared memory that a block may have on
// sm_86 and sm_89. Three stages of two planes fit in half of an SM's 100 KB there, so that two blocks share an SM, as
// the registers allow everywhere.
//
// A kernel over two planes is launched together with the one over three that has the same tile (variants.cc).
#pragma once

#include <tuple>

#include "kernels/sm80_split/config.h"

namespace hgemm::sm80_split {

template <class Config>
struct Kernel {
  /// The share of the chip's mma.sync rate (Chip::mma_flops, at Chip::clock_ghz) that the main loop reaches. Over three
  /// planes this is the value that fits timings on an H200 best. Over two planes it is an estimate, because nobody has
  /// timed the kernel: half of the products need two thirds of the bytes of shared memory (NOTES.md).
  double rate;
};

constexpr std::tuple kKernels{
    Kernel<Config<64, 64, 3>>{.rate = 0.63},
    Kernel<Config<64, 64, 3, 2>>{.rate = 0.50},
};

}  // namespace hgemm::sm80_split
