// Plain stores to shared memory by 32-bit address.
// PTX ISA, "Data Movement and Conversion Instructions: st".
#pragma once

#include <cstdint>

namespace hgemm::ptx {

/// st.shared.b32: 4 bytes, 4-byte aligned.
__device__ __forceinline__ void st_shared_4(uint32_t dst, uint32_t v) {
  asm volatile("st.shared.b32 [%0], %1;\n" ::"r"(dst), "r"(v) : "memory");
}

/// st.shared.v4.b32: 16 bytes, 16-byte aligned.
__device__ __forceinline__ void st_shared_16(uint32_t dst, const uint32_t (&v)[4]) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};\n" ::"r"(dst), "r"(v[0]), "r"(v[1]), "r"(v[2]), "r"(v[3])
               : "memory");
}

/// Hides where a value comes from: what follows from it is computed on the spot instead of kept in registers.
__device__ __forceinline__ uint32_t opaque(uint32_t x) {
  asm volatile("" : "+r"(x));
  return x;
}

template <class T>
__device__ __forceinline__ T* opaque(T* x) {
  asm volatile("" : "+l"(x));
  return x;
}

}  // namespace hgemm::ptx
