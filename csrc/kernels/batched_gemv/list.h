// The kernels of batched_gemv, one line each: this is where a kernel is declared.
//
// A line holds a Config: 16-byte loads of W that a thread keeps in flight; blocks of kMostWarps warps per SM that the
// registers are limited for.
#pragma once

#include <tuple>

#include "kernels/batched_gemv/config.h"

namespace hgemm::batched_gemv {

template <class Config>
struct Kernel {};

constexpr std::tuple kKernels{
    Kernel<Config<4, 4>>{},
    Kernel<Config<8, 3>>{},
};

}  // namespace hgemm::batched_gemv
