// A store to global memory.
// PTX ISA, "Data Movement and Conversion Instructions: st".
#pragma once

#include <cstdint>

namespace hgemm::ptx {

/// st.global.cs.v4.b32: stores 16 aligned bytes that nothing reads soon.
__device__ __forceinline__ void st_once_16(void* p, uint4 v) {
  asm volatile("st.global.cs.v4.b32 [%0], {%1, %2, %3, %4};\n" ::"l"(p), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
               : "memory");
}

/// st.global.v4.f32: stores 16 aligned bytes.
__device__ __forceinline__ void store_16(float* p, const float (&v)[4]) {
  asm volatile("st.global.v4.f32 [%0], {%1, %2, %3, %4};\n" ::"l"(p), "f"(v[0]), "f"(v[1]), "f"(v[2]), "f"(v[3])
               : "memory");
}

}  // namespace hgemm::ptx
