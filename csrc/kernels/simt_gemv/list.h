// The kernels of simt_gemv, one line each: this is where a kernel is declared.
//
// A line holds a Config: rows of the short operand; units of loads that a thread keeps in flight. A unit is four
// 16-byte loads of a K-major W, or eight of an MN-major W.
#pragma once

#include <tuple>

#include "kernels/simt_gemv/config.h"

namespace hgemm::simt_gemv {

template <class Config>
struct Kernel {
  /// GB/s at which the kernel reads a large W, measured on the H200.
  double rate;
};

constexpr std::tuple kKernels{
    Kernel<Config<4, 2>>{.rate = 4200},
    Kernel<Config<8, 1>>{.rate = 3850},
};

}  // namespace hgemm::simt_gemv
