// Fragments of float32 operands: loads from shared memory, and their conversion to bfloat16 elements of tensor cores.
#pragma once

#include <cstdint>

namespace hgemm::ptx {

/// ld.shared.v4.f32: loads 16 bytes from a 16-byte aligned address.
__device__ __forceinline__ void ld_shared_16(float (&v)[4], uint32_t src) {
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];\n"
               : "=f"(v[0]), "=f"(v[1]), "=f"(v[2]), "=f"(v[3])
               : "r"(src)
               : "memory");
}

/// cvt.rn.bf16x2.f32: the bfloat16 nearest to `low` and to `high`, in the lower and the upper half of a register.
__device__ __forceinline__ uint32_t pack_bf16(float low, float high) {
  uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;\n" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

}  // namespace hgemm::ptx
