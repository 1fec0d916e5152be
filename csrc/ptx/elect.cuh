// One lane for a whole warp.
#pragma once

#include <cstdint>

namespace hgemm::ptx {

/// elect.sync: true in one lane, the same each time. The whole warp calls it. What follows runs once, and ptxas knows:
/// behind `lane == 0` each instruction that takes uniform registers, TMA's above all, gets a loop over the lanes.
__device__ __forceinline__ bool elect_one() {
  uint32_t elected;
  asm volatile("{.reg .pred p;\nelect.sync _|p, 0xffffffff;\nselp.u32 %0, 1, 0, p;}\n" : "=r"(elected));
  return elected != 0;
}

}  // namespace hgemm::ptx
