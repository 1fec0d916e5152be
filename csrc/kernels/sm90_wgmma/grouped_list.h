// The kernels of grouped products, one line each. dispatch/grouped.cc chooses among them by the
// rows of a group. They have one source together, because none takes more than seconds to compile.
#pragma once

#include <tuple>

#include "kernels/sm90_wgmma/config.h"

namespace hgemm::sm90_wgmma::grouped {

/// The names in reports, in the order of the list.
constexpr const char* kNames[] = {
    "sm90_wgmma_grouped_64x64_swapped", "sm90_wgmma_grouped_128x128_swapped", "sm90_wgmma_grouped_128x128_1x2",
    "sm90_wgmma_grouped_128x192_2x1",   "sm90_wgmma_grouped_128x256_1x2",     "sm90_wgmma_grouped_128x256_2x1",
    "sm90_wgmma_grouped_k_128x192_2x1", "sm90_wgmma_grouped_k_192x128_1x2",   "sm90_wgmma_grouped_k_128x256_2x1",
    "sm90_wgmma_grouped_128x64_1x2",    "sm90_wgmma_grouped_192x128_1x2"};

template <class Config_>
struct Kernel {
  using Config = Config_;
};

constexpr std::tuple kKernels{
    // Few rows a group: every tile of the weights is read once, at the speed of memory.
    Kernel<Grouped<SwapAB<Consumers::kPingpong, 64, 64, 13, 1, 1, 1>>>{},
    Kernel<Grouped<SwapAB<Consumers::kCooperative, 128, 128, 5, 1, 1, 1>>>{},
    Kernel<Grouped<Config<Consumers::kPingpong, 128, 128, 6, 1, 2, 1>>>{},
    // Many rows a group. The blocks of a cluster along N share rows, and those along M weights.
    Kernel<Grouped<Config<Consumers::kPingpong, 128, 192, 5, 2, 1, 1>>>{},
    Kernel<Grouped<Config<Consumers::kCooperative, 128, 256, 4, 1, 2, 1>>>{},
    Kernel<Grouped<Config<Consumers::kCooperative, 128, 256, 4, 2, 1, 1>>>{},
    // Gradients of weights.
    Kernel<GroupedK<Config<Consumers::kPingpong, 128, 192, 5, 2, 1, 1>>>{},
    Kernel<GroupedK<Config<Consumers::kPingpong, 192, 128, 5, 1, 2, 1>>>{},
    Kernel<GroupedK<Config<Consumers::kCooperative, 128, 256, 4, 2, 1, 1>>>{},
    // One group of 65 to some hundred rows.
    Kernel<Grouped<Config<Consumers::kPingpong, 128, 64, 8, 1, 2, 1>>>{},
    // Groups of up to 192 rows, or of somewhat less than a multiple of that.
    Kernel<Grouped<Config<Consumers::kPingpong, 192, 128, 5, 1, 2, 1>>>{},
};

}  // namespace hgemm::sm90_wgmma::grouped
