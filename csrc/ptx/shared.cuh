// Loads from and stores to shared memory by its 32-bit address.
#pragma once

#include <cstdint>

namespace hgemm::ptx {

/// st.shared.b32: stores 4 bytes to a 4-byte aligned address.
__device__ __forceinline__ void st_shared_4(uint32_t dst, uint32_t v) {
  asm volatile("st.shared.b32 [%0], %1;\n" ::"r"(dst), "r"(v) : "memory");
}

/// st.shared.v2.b32: stores 8 bytes to an 8-byte aligned address.
__device__ __forceinline__ void st_shared_8(uint32_t dst, uint32_t a, uint32_t b) {
  asm volatile("st.shared.v2.b32 [%0], {%1, %2};\n" ::"r"(dst), "r"(a), "r"(b) : "memory");
}

/// st.shared.v4.b32: stores 16 bytes to a 16-byte aligned address.
__device__ __forceinline__ void st_shared_16(uint32_t dst, const uint32_t (&v)[4]) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};\n" ::"r"(dst), "r"(v[0]), "r"(v[1]), "r"(v[2]), "r"(v[3])
               : "memory");
}

/// ld.shared.b32: loads 4 bytes from a 4-byte aligned address.
__device__ __forceinline__ uint32_t ld_shared_4(uint32_t src) {
  uint32_t v;
  asm volatile("ld.shared.b32 %0, [%1];\n" : "=r"(v) : "r"(src) : "memory");
  return v;
}

/// Hides the origin of a value from the compiler, so that values derived from it are computed where they are used
/// instead of being kept in registers.
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
