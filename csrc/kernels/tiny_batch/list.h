// The kernels of tiny_batch, one line each: this is where a kernel is declared.
//
// A line holds a Config: rows and columns of a thread's tile; k that it loads at a time; whether the tile is the whole
// product, which then has as many k; blocks of 128 threads that the registers of an SM are limited for, and the same
// for elements of 8 bytes, or 0 where the kernel does not take these. Left out: larger tiles and tiles of whole rows,
// which were slower (NOTES.md).
#pragma once

#include <tuple>

#include "kernels/tiny_batch/config.h"

namespace hgemm::tiny_batch {

template <class Config>
struct Kernel {};

// clang-format off: a line each
constexpr std::tuple kKernels{
    Kernel<Config<4, 4, 4, false, 6, 4>>{},
    Kernel<Config<2, 2, 4, true, 12, 8>>{},
    Kernel<Config<3, 3, 4, true, 12, 6>>{},
    Kernel<Config<4, 4, 4, true, 8, 4>>{},
    Kernel<Config<5, 5, 4, true, 6, 0>>{},
    Kernel<Config<6, 6, 4, true, 4, 0>>{},
};
// clang-format on

}  // namespace hgemm::tiny_batch
