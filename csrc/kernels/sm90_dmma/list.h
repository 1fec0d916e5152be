// The kernels of sm90_dmma, one line each: this is where a kernel is declared.
//
// A line holds a Config: tile of a block (BM, BN); rows of a warp's part of it; groups of warps that share K; pipeline
// stages; blocks per SM; double where the elements are not float32.
//
// Why these tiles:
//  - 128x64 reads the least from L2 and converts the least, for large results.
//  - 64x64 has three blocks on an SM, which hide each other's start and end: for batches and a short K.
//  - 64x64 with three groups and 64x32 with two give an SM enough warps by one or two blocks: for few results and a
//    long K, which is split.
//  - 32x128 and 128x32 are for at most 32 rows or columns, and for other extents that fill tiles of 64 badly.
#pragma once

#include <tuple>

#include "kernels/sm90_dmma/config.h"

namespace hgemm::sm90_dmma {

template <class Config>
struct Kernel {
  /// The share of the peak (Chip::simt_flops) that fully occupied SMs reach where memory is not the limit.
  double share;
};

constexpr std::tuple kKernels{
    Kernel<Config<128, 64, 64, 1, 4, 2>>{.share = 0.969},      // 128 threads, 64 KB
    Kernel<Config<64, 64, 32, 1, 5, 3>>{.share = 0.988},       // 128 threads, 40 KB
    Kernel<Config<64, 64, 32, 3, 5, 1>>{.share = 1},           // 384 threads, 120 KB
    Kernel<Config<32, 128, 32, 1, 5, 3>>{.share = 0.989},      // 128 threads, 50 KB
    Kernel<Config<128, 32, 32, 1, 5, 3>>{.share = 0.961},      // 128 threads, 50 KB
    Kernel<Config<64, 32, 32, 2, 5, 2>>{.share = 1},           // 128 threads, 60 KB
    Kernel<Config<128, 64, 64, 1, 4, 2, double>>{.share = 1},  // 128 threads, 96 KB
    Kernel<Config<64, 64, 32, 1, 4, 3, double>>{.share = 1},   // 128 threads, 64 KB
    Kernel<Config<64, 64, 32, 3, 4, 1, double>>{.share = 1},   // 384 threads, 192 KB
    Kernel<Config<32, 128, 32, 1, 5, 2, double>>{.share = 1},  // 128 threads, 100 KB
    Kernel<Config<128, 32, 32, 1, 5, 2, double>>{.share = 1},  // 128 threads, 100 KB
    Kernel<Config<64, 32, 32, 2, 4, 2, double>>{.share = 1},   // 128 threads, 96 KB
};

}  // namespace hgemm::sm90_dmma
