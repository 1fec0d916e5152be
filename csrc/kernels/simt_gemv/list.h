// The kernels of simt_gemv, one line each: this is where a kernel is declared.
//
// A line holds a Config: rows of the short operand; loads in flight, in units of four of 16 bytes (W K-major) and of
// eight (MN-major).
#pragma once

#include <tuple>

#include "kernels/simt_gemv/config.h"

namespace hgemm::simt_gemv {

template <class Config>
struct Kernel {
  double rate;  // GB/s at which an H200 reads a large W
};

constexpr std::tuple kKernels{
    Kernel<Config<4, 2>>{.rate = 4200},
    Kernel<Config<8, 1>>{.rate = 3850},
};

}  // namespace hgemm::simt_gemv
