// A ring of shared-memory stages between threads that fill them and threads that use them.
#pragma once

#include <cstdint>

namespace hgemm::tile {

/// Position in the ring; `parity`, of the phase of the stage's barriers, flips with every turn.
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
