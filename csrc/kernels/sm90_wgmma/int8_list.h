// The kernels of int8 products, one line each. dispatch/int8.cc chooses among them. They have one source together,
// because each takes a second or two to compile.
#pragma once

#include <tuple>

#include "kernels/sm90_wgmma/config.h"

namespace hgemm::sm90_wgmma::int8 {

template <class Config_>
struct Kernel {
  using Config = Config_;
  double rate;  // share of the rate of wgmma
};

constexpr std::tuple kKernels{
    Kernel<Int8<Config<Consumers::kCooperative, 128, 256, 4, 2, 1, 1>>>{.rate = 0.85},
    Kernel<Int8<Config<Consumers::kPingpong, 128, 192, 5, 2, 1, 1>>>{.rate = 0.83},
    Kernel<Int8<Config<Consumers::kPingpong, 128, 128, 6, 2, 1, 1>>>{.rate = 0.8},
    Kernel<Int8<Config<Consumers::kPingpong, 64, 128, 8, 2, 1, 1>>>{.rate = 0.7},
    Kernel<Int8<Config<Consumers::kPingpong, 64, 64, 13, 2, 2, 1>>>{.rate = 0.5},
};

}  // namespace hgemm::sm90_wgmma::int8
