// The kernels of simt_tile, one line each: this is where a kernel is declared.
//
// A line holds a Config: rows, columns and k of a block's tile; rows and columns of a thread's results; warps that
// share results and divide the k of a stage; pipeline stages; blocks per SM that the registers are limited for.
// NOTES.md says which other tiles were tried.
#pragma once

#include <tuple>

#include "kernels/simt_tile/config.h"

namespace hgemm::simt_tile {

template <class Config>
struct Kernel {};

constexpr std::tuple kKernels{
    Kernel<Config<128, 64, 16, 8, 8, 1, 4, 3>>{},
    Kernel<Config<64, 64, 64, 8, 8, 4, 3, 2>>{},
};

}  // namespace hgemm::simt_tile
