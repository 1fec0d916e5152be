// Messages between blocks through global memory: a flag says that what was written before it can be read.
// PTX ISA, "Data Movement and Conversion Instructions: ld, st".
#pragma once

#include <cstdint>

namespace hgemm::ptx {

/// st.release.gpu: what this thread wrote or knows to be written is visible to whoever finds the flag by flag_load.
__device__ __forceinline__ void flag_store(uint64_t* flag, uint64_t value) {
  asm volatile("st.release.gpu.global.u64 [%0], %1;\n" ::"l"(flag), "l"(value) : "memory");
}

/// ld.acquire.gpu.
__device__ __forceinline__ uint64_t flag_load(const uint64_t* flag) {
  uint64_t value;
  asm volatile("ld.acquire.gpu.global.u64 %0, [%1];\n" : "=l"(value) : "l"(flag) : "memory");
  return value;
}

}  // namespace hgemm::ptx
