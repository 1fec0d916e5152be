// Relaxed loads from global memory.
#pragma once

#include <cstdint>

namespace hgemm::ptx {

/// ld.relaxed.gpu.b32: loads 4 aligned bytes of what another thread of the GPU may have written. It never takes a line
/// of L1 from before the write.
__device__ __forceinline__ int32_t ld_relaxed_4(const int32_t* p) {
  int32_t v;
  asm volatile("ld.relaxed.gpu.global.b32 %0, [%1];\n" : "=r"(v) : "l"(p) : "memory");
  return v;
}

}  // namespace hgemm::ptx
