// Operands as aligned chunks of 16 bytes, eight 16-bit elements.
#pragma once

#include <cstdint>

namespace hgemm::tile {

/// Elements that `p` lies behind a multiple of 16 bytes.
__device__ __forceinline__ int off_grid(const void* p) {
  return static_cast<int>(reinterpret_cast<uint64_t>(p) % 16 / 2);
}

__device__ __forceinline__ uint32_t word(const uint4& v, int i) {
  return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

}  // namespace hgemm::tile
