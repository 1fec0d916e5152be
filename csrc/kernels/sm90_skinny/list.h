// The kernels of sm90_skinny, one line each: this is where a kernel is declared.
//
// A line holds a Config: the most rows that a tile of the long operand has, 64 for each warpgroup; the rows of the
// short operand, which are the N of the instruction; the 64-wide panels of K in a stage; the size of the ring in KB.
//
// Two blocks share an SM, so that the next kernel of a chain is resident before this one ends. There are two
// exceptions: with 64 rows of x the ring would then have only three stages, and without slices of K a deep ring is
// faster (Deep). Tiles of 128 rows read x half as often, which matters from COLS = 32 on. They need most of an SM's
// shared memory.
//
// Tiled kernels have several tiles of x, for 65 rows and more in batch-invariant numerics. Tiles of 96 rows take a
// K-major x only (Config::kTakesMnMajorX).
#pragma once

#include <tuple>

#include "kernels/sm90_skinny/config.h"

namespace hgemm::sm90_skinny {

template <class Config>
struct Kernel {
  double rate;  // GB/s at which a large W is read, measured on the H200
};

// clang-format off: a line each
constexpr std::tuple kKernels{
    Kernel<Config<64, 8, 2, 108>>{.rate = 4330},
    Kernel<Config<64, 16, 2, 104>>{.rate = 4270},
    Kernel<Config<64, 32, 2, 105>>{.rate = 4200},
    Kernel<Config<64, 64, 2, 196>>{.rate = 3950},
    Kernel<Config<128, 32, 2, 200>>{.rate = 4300},
    Kernel<Config<128, 64, 1, 200>>{.rate = 4100},
    Kernel<Tiled<64, 64, 2, 196>>{.rate = 3950},
    Kernel<Tiled<64, 96, 2, 200>>{.rate = 3950},
};
// clang-format on

}  // namespace hgemm::sm90_skinny
