// Wide loads from shared memory.
#pragma once

#include <cstdint>

namespace hgemm::ptx {

/// ld.shared.v4.b32: loads 16 bytes from a 16-byte aligned address.
__device__ __forceinline__ void ld_shared_16(uint32_t& a, uint32_t& b, uint32_t& c, uint32_t& d, uint32_t src) {
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];\n" : "=r"(a), "=r"(b), "=r"(c), "=r"(d) : "r"(src) : "memory");
}

}  // namespace hgemm::ptx
