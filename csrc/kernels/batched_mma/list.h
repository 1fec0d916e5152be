// The kernels of batched_mma, one line each: this is where a kernel is declared.
//
// A line holds a Config: the largest M and N; K of a step; what a warp computes of it; steps in shared memory; problems
// that a block works on at a time, more than one only where a warp has each to itself; blocks that the registers of an
// SM are limited for.
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
    Kernel<Config<32, 32, 32, 32, 32, 2, 4, 5>>{},
    Kernel<Config<64, 64, 64, 32, 32, 2, 1, 4>>{},
};
// clang-format on

}  // namespace hgemm::batched_mma
