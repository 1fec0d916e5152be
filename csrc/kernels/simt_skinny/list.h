// The kernels of simt_skinny, one line each: this is where a kernel is declared.
//
// A line holds a Config: rows of the short operand; stages of the ring; blocks that an SM has registers and shared
// memory for. NOTES.md says why none has 1, 2, 4, 48 or 64 rows.
#pragma once

#include <tuple>

#include "kernels/simt_skinny/config.h"

namespace hgemm::simt_skinny {

template <class Config>
struct Kernel {
  double share;  // of the fp32 FMA peak that full SMs reach, where memory does not decide
};

constexpr std::tuple kKernels{
    Kernel<Config<8, 4, 2>>{.share = 0.345},
    Kernel<Config<16, 4, 2>>{.share = 0.46},
    Kernel<Config<24, 4, 2>>{.share = 0.535},
    Kernel<Config<32, 4, 2>>{.share = 0.56},
};

}  // namespace hgemm::simt_skinny
