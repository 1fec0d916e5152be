// The kernels of skinny, one line each: this is where a kernel is declared.
//
// A line holds a Config: rows of the short operand; warps of a block, which split K among them; loads of W that a warp
// keeps in flight. The loads are counted in units of 64 k by 16 rows for a K-major W, and of 32 k by 64 rows for an
// MN-major W.
#pragma once

#include <tuple>

#include "kernels/skinny/config.h"

namespace hgemm::skinny {

template <class Config>
struct Kernel {
  /// GB/s at which the kernel reads a large W, measured on the H200: an aligned W, an unaligned K-major W, an unaligned
  /// MN-major W.
  double rate, narrow_k, narrow_mn;
};

constexpr std::tuple kKernels{
    Kernel<Config<8, 8, 4, 2>>{.rate = 4300, .narrow_k = 2900, .narrow_mn = 900},
    Kernel<Config<16, 8, 3, 2>>{.rate = 3900, .narrow_k = 2150, .narrow_mn = 800},
};

}  // namespace hgemm::skinny
