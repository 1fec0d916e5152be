// The kernels of simt_tile, one line each: this is where a kernel is declared.
//
// A line holds a Config: rows, columns and k of a block's tile; rows and columns of a thread's results; warps that
// share results and divide the k of a stage; pipeline stages; blocks per SM that the registers are limited for.
#pragma once

#include <tuple>

#include "kernels/simt_tile/config.h"

namespace hgemm::simt_tile {

template <class Config>
struct Kernel {
  /// The share of the float32 FMA peak (Chip::simt_flops) that an SM reaches with all of its blocks, and with one.
  double share, alone;
};

constexpr std::tuple kKernels{
    Kernel<Config<128, 128, 16, 8, 16, 1, 4, 2>>{.share = 0.75, .alone = 0.5},
    Kernel<Config<128, 64, 16, 8, 8, 1, 4, 3>>{.share = 0.65, .alone = 0.3},
    Kernel<Config<64, 64, 16, 8, 8, 1, 4, 8>>{.share = 0.65, .alone = 0.15},
    Kernel<Config<64, 64, 64, 8, 8, 4, 3, 2>>{.share = 0.65, .alone = 0.5},
    Kernel<Config<32, 128, 32, 8, 8, 4, 3, 2>>{.share = 0.6, .alone = 0.4},
};

}  // namespace hgemm::simt_tile
