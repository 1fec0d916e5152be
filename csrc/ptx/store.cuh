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

}  // namespace hgemm::ptx
