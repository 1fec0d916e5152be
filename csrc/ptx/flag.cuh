// Flags in global memory, by which a block tells others that the data that it wrote before can be read.
#pragma once

#include <cstdint>

namespace hgemm::ptx {

/// st.release.gpu: sets the flag. A thread that reads `value` by flag_load also sees all writes that this thread made
/// or observed before.
__device__ __forceinline__ void flag_store(uint64_t* flag, uint64_t value) {
  asm volatile("st.release.gpu.global.u64 [%0], %1;\n" ::"l"(flag), "l"(value) : "memory");
}

/// ld.acquire.gpu: reads the flag.
__device__ __forceinline__ uint64_t flag_load(const uint64_t* flag) {
  uint64_t value;
  asm volatile("ld.acquire.gpu.global.u64 %0, [%1];\n" : "=l"(value) : "l"(flag) : "memory");
  return value;
}

}  // namespace hgemm::ptx
