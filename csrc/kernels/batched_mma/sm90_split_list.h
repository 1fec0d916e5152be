// The float32 kernels of batched_mma, one line each: this is where a kernel is declared.
//
// A line holds a Config: pipeline stages, blocks per SM that the registers are limited for.
#pragma once

#include <tuple>

#include "kernels/batched_mma/sm90_split_config.h"

namespace hgemm::batched_split {

template <class Config>
struct Kernel {};

constexpr std::tuple kKernels{
    Kernel<Config<3, 3>>{},
};

}  // namespace hgemm::batched_split
