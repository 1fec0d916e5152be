// The kernels of skinny, one line each: this is where a kernel is declared.
//
// A line holds a Config: rows of the short operand; warps of a block, which share K; loads in flight, in units of 64 k
// by 16 rows (W K-major) and of 32 k by 64 rows (MN-major).
#pragma once

#include <tuple>

#include "kernels/skinny/config.h"

namespace hgemm::skinny {

/// Rates are measured on the H200.
template <class Config>
struct Kernel {
  double rate, narrow_k, narrow_mn;  // GB/s at which a large W is read: aligned, unaligned and K-major, and MN-major
};

constexpr std::tuple kKernels{
    Kernel<Config<8, 8, 4, 2>>{.rate = 4300, .narrow_k = 2900, .narrow_mn = 900},
    Kernel<Config<16, 8, 3, 2>>{.rate = 3900, .narrow_k = 2150, .narrow_mn = 800},
};

}  // namespace hgemm::skinny
