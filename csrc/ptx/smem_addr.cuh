// Addresses of shared memory as PTX instructions take them.
#pragma once

#include <cstdint>

namespace hgemm::ptx {

/// Generic address of shared memory -> the 32-bit address PTX wants.
__device__ __forceinline__ uint32_t smem_addr(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

}  // namespace hgemm::ptx
