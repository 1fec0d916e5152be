// Addresses of shared memory as PTX instructions take them.
#pragma once

#include <cstdint>

namespace hgemm::ptx {

/// Converts a generic address of shared memory to the 32-bit address that PTX instructions take.
__device__ __forceinline__ uint32_t smem_addr(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

}  // namespace hgemm::ptx
