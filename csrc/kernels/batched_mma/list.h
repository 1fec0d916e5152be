// The kernels of batched_mma, one line each: this is where a kernel is declared.
//
// A line holds a Config: the largest M and N; the k-tile; the part of D that a warp computes; pipeline stages; problems
// that a block works on at a time, which is more than one only where one warp computes a whole problem; blocks per SM
// that the registers are limited for.
//
// The kernel of one warp for 32x32 is there for operands that are not wide (AlwaysNarrow): on wide ones another kernel
// is faster, in most cases that of four warps (NOTES.md).
//
// A line with an InPlaceConfig is a kernel for larger unaligned matrices without gaps between their rows: warps of a
// block, chunks of eight elements of an operand that each thread moves, sixteenths of the rows of a warp's sub-tile,
// and blocks per SM.
#pragma once

#include <tuple>

#include "kernels/batched_mma/config.h"

namespace hgemm::batched_mma {

template <class Config>
struct Kernel {};

// clang-format off: a line each
constexpr std::tuple kKernels{
    Kernel<Config<16, 16, 32, 16, 16, 3, 4, 6>>{},
    Kernel<Config<16, 16, 64, 16, 16, 3, 4, 6>>{},
    Kernel<Config<32, 32, 32, 16, 16, 3, 1, 6>>{},
    Kernel<AlwaysNarrow<Config<32, 32, 32, 32, 32, 2, 4, 5>>>{},
    Kernel<Config<64, 64, 64, 32, 32, 2, 1, 4>>{},
    Kernel<InPlaceConfig<4, 12, 2, 5>>{},
    Kernel<InPlaceConfig<8, 8, 2, 3>>{},
    Kernel<InPlaceConfig<16, 12, 2, 1>>{},
};
// clang-format on

}  // namespace hgemm::batched_mma
