// A ring of shared-memory stages between producer and consumer threads.
#pragma once

#include <cstdint>

namespace hgemm::tile {

/// A position in the ring. `parity` is the phase parity of the stage's barriers, which flips each time the position
/// wraps around.
template <int STAGES>
struct Ring {
  uint32_t stage = 0, parity = 0;
  __device__ __forceinline__ void advance() {
    if (++stage == STAGES) {
      stage = 0;
      parity ^= 1;
    }
  }
  __device__ __forceinline__ void skip(uint32_t steps) {
    const uint32_t at = stage + steps;
    parity ^= at / STAGES & 1;
    stage = at % STAGES;
  }
};

}  // namespace hgemm::tile
