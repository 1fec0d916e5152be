// Plain stores to shared memory by 32-bit address.
// PTX ISA, "Data Movement and Conversion Instructions: st".
#pragma once

#include <cstdint>

namespace hgemm::ptx {

/// st.shared.v4.b32: 16 bytes, 16-byte aligned.
__device__ __forceinline__ void st_shared_16(uint32_t dst, const uint32_t (&v)[4]) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};\n" ::"r"(dst), "r"(v[0]), "r"(v[1]), "r"(v[2]), "r"(v[3])
               : "memory");
}

}  // namespace hgemm::ptx
