// The kernels of int8 products, one line each. They are compiled to one object together, because each takes a second or
// two to compile.
#pragma once

#include <tuple>

#include "kernels/sm90_wgmma/config.h"

namespace hgemm::sm90_wgmma::int8 {

/// The times in microseconds that fit measurements on a warm H200: of 128 k of a work tile, and of what a work tile
/// takes beyond its main loop. `idle_step_us`: of 128 k where nearly all SMs are idle.
template <class Config>
struct Kernel {
  double step_us, tile_us, idle_step_us = step_us;
};

constexpr std::tuple kKernels{
    // C of whole waves of its tiles, and long K. It has no other tile that would hide the epilogue.
    Kernel<Int8<Config<Consumers::kCooperative, 128, 256, 4, 2, 1, 1>>>{.step_us = 0.68, .tile_us = 1.0},
    // Most large C.
    Kernel<Int8<Config<Consumers::kPingpong, 128, 192, 5, 2, 1, 1>>>{.step_us = 0.495, .tile_us = 0.1},
    // C of few waves, and small C.
    Kernel<Int8<Config<Consumers::kPingpong, 128, 128, 6, 2, 1, 1>>>{.step_us = 0.36, .tile_us = 0.1},
    Kernel<Int8<Config<Consumers::kPingpong, 64, 128, 8, 2, 1, 1>>>{
        .step_us = 0.225, .tile_us = 0.1, .idle_step_us = 0.12},
};

}  // namespace hgemm::sm90_wgmma::int8
