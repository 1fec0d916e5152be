// The kernels of simt_skinny, one line each: this is where a kernel is declared.
//
// A line holds a Config: rows of the short operand; pipeline stages; blocks per SM that its registers and shared memory
// are limited for. NOTES.md says why no kernel has 1, 2, 4, 48 or 64 rows.
#pragma once

#include <tuple>

#include "kernels/simt_skinny/config.h"

namespace hgemm::simt_skinny {

template <class Config>
struct Kernel {
  /// The share of the float32 FMA peak (Chip::simt_flops) that fully occupied SMs reach where memory is not the limit.
  double share;
};

constexpr std::tuple kKernels{
    Kernel<Config<8, 4, 2>>{.share = 0.345},
    Kernel<Config<16, 4, 2>>{.share = 0.46},
    Kernel<Config<24, 4, 2>>{.share = 0.535},
    Kernel<Config<32, 4, 2>>{.share = 0.56},
};

}  // namespace hgemm::simt_skinny
