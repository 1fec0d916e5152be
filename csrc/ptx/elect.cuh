// Election of one lane of a warp.
#pragma once

#include <cstdint>

namespace hgemm::ptx {

/// elect.sync: returns true in one lane of the warp, the same lane each time. All lanes must call it. Unlike with `lane
/// == 0`, ptxas knows that the branch behind it runs in one lane. Behind `lane == 0` each instruction that takes
/// uniform registers, above all TMA's, is compiled to a loop over the lanes.
__device__ __forceinline__ bool elect_one() {
  uint32_t elected;
  asm volatile("{.reg .pred p;\nelect.sync _|p, 0xffffffff;\nselp.u32 %0, 1, 0, p;}\n" : "=r"(elected));
  return elected != 0;
}

}  // namespace hgemm::ptx
