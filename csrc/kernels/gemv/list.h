// The kernels of gemv, one line each: this is where a kernel is declared.
//
// A line holds a Config: rows of the short operand; units of four 16-byte loads that a thread has in flight and blocks
// that an SM has registers for, W K-major and MN-major; k of x that a block keeps in shared memory, the rest are other
// blocks'.
#pragma once

#include <tuple>

#include "kernels/gemv/config.h"

namespace hgemm::gemv {

template <class Config>
struct Kernel {
  double rate_k, rate_mn;  // GB/s at which a large aligned W is read, K-major and MN-major, measured on the H200
};

constexpr std::tuple kKernels{
    Kernel<Config<1, 2, 4, 1, 5, 16384>>{.rate_k = 4200, .rate_mn = 4250},
};

}  // namespace hgemm::gemv
