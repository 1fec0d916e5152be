// Access to operands in aligned chunks of 16 bytes, which are eight 16-bit elements.
#pragma once

#include <cstdint>

namespace hgemm::tile {

/// The number of elements from the preceding multiple of 16 bytes to `p`, 0 to 7.
__device__ __forceinline__ int off_grid(const void* p) {
  return static_cast<int>(reinterpret_cast<uint64_t>(p) % 16 / 2);
}

__device__ __forceinline__ uint32_t word(const uint4& v, int i) {
  return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

/// Returns eight elements out of two neighbouring chunks, starting at element `skew` (0..7) of the first chunk.
__device__ __forceinline__ uint4 shifted(const uint4& low, const uint4& high, int skew) {
  const uint32_t w[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
  uint32_t by_two[6], by_one[5], out[4];
#pragma unroll
  for (int i = 0; i < 6; ++i) by_two[i] = skew & 4 ? w[i + 2] : w[i];
#pragma unroll
  for (int i = 0; i < 5; ++i) by_one[i] = skew & 2 ? by_two[i + 1] : by_two[i];
#pragma unroll
  for (int i = 0; i < 4; ++i) out[i] = __funnelshift_r(by_one[i], by_one[i + 1], (skew & 1) * 16);
  return make_uint4(out[0], out[1], out[2], out[3]);
}

}  // namespace hgemm::tile
