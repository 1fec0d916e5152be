// The kernels of sm90_split_skinny, one line each: this is where a kernel is declared.
//
// A line holds a Config: the rows of x in a tile, and the number of pipeline stages. Stages of 64 k fill the shared
// memory of an SM.
#pragma once

#include <tuple>

#include "kernels/sm90_split_skinny/config.h"

namespace hgemm::sm90_split_skinny {

template <class Config>
struct Kernel {
  double step_us;  // the time of a stage where its bytes are not the limit
};

constexpr std::tuple kKernels{
    Kernel<Config<32, 5>>{.step_us = 0.98},
    Kernel<Config<64, 3>>{.step_us = 1.43},
    Kernel<Config<96, 3>>{.step_us = 1.89},
    Kernel<Config<128, 2>>{.step_us = 2.37},
};

}  // namespace hgemm::sm90_split_skinny
