// The kernels of int8 products with 17 to 64 rows or columns, one line each, with pairs of k as elements. They are
// compiled to one object together, because each takes a second to compile.
//
// A line holds a Config as in list.h. Those with two parts take a row-major B as it is.
#pragma once

#include <tuple>

#include "kernels/sm90_skinny/config.h"
#include "kernels/sm90_skinny/list.h"

namespace hgemm::sm90_skinny::int8 {

// clang-format off: a line each
constexpr std::tuple kKernels{
    Kernel<Config<64, 32, 2, 105>>{.rate = 4200},
    Kernel<Config<64, 64, 2, 196>>{.rate = 3950},
    Kernel<Config<128, 64, 1, 200>>{.rate = 4100},
    Kernel<Config<128, 32, 1, 200, 2>>{.rate = 4000},
    Kernel<Config<128, 64, 1, 200, 2>>{.rate = 4000},
    Kernel<Config<128, 128, 1, 160, 2>>{.rate = 4000},
};
// clang-format on

}  // namespace hgemm::sm90_skinny::int8
