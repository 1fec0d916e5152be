// The kernels of gemv, one line each: this is where a kernel is declared.
//
// A line holds a Config: rows of the short operand; for a K-major and then for an MN-major W, units of four 16-byte
// loads that a thread has in flight, and blocks per SM that its registers are limited for; k of x that a block keeps in
// shared memory. Other blocks take the rest of K.
#pragma once

#include <tuple>

#include "kernels/gemv/config.h"

namespace hgemm::gemv {

template <class Config>
struct Kernel {
  /// GB/s at which the kernel reads a large aligned W, K-major and MN-major, measured on the H200.
  double rate_k, rate_mn;
};

constexpr std::tuple kKernels{
    Kernel<Config<1, 2, 4, 1, 5, 16384>>{.rate_k = 4200, .rate_mn = 4250},
};

}  // namespace hgemm::gemv
