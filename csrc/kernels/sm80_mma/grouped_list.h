// The kernels of grouped products by mma.sync, one line each. Each of them takes every form of a grouped product.
// dispatch/grouped.cc chooses among them by the rows of a group.
#pragma once

#include <tuple>

#include "core/grouped.h"
#include "kernels/sm80_mma/config.h"

namespace hgemm::sm80_mma::grouped {

/// The names in reports, in the order of the list.
constexpr const char* kNames[] = {"sm80_mma_grouped_32x128", "sm80_mma_grouped_128x128"};

template <class Config_>
struct Kernel {
  using Config = Config_;
};

constexpr std::tuple kKernels{
    // Few rows a group, and operands of any alignment. Blocks that share an SM read weights at the speed of memory.
    Kernel<Config<32, 128, 64, 32, 32, 4, Unaligned::kNarrow>>{},
    // Many rows a group. It has no registers left for the words of unaligned operands.
    Kernel<Config<128, 128, 64, 64, 64, 3, Unaligned::kPad>>{},
};

}  // namespace hgemm::sm80_mma::grouped
