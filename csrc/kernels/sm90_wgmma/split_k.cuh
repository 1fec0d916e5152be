// Split-K: the blocks of a cluster reduce their sums of one tile through distributed shared memory.
#pragma once

#include <cstdint>

#include "kernels/sm90_wgmma/accumulators.cuh"
#include "ptx/cluster.cuh"
#include "ptx/mbarrier.cuh"

namespace hgemm::sm90_wgmma {

/// Reduces the accumulators of the cluster's blocks. Block `half` % CK finishes 32-column subtile `half`. Each block
/// sends its sums of the other blocks' subtiles to them, and adds up its own subtiles in the blocks' order, which is
/// the same for all elements. `sums`: the buffer that receives them, (CK - 1, kOwnHalves, 4, kConsumerThreads, 16
/// bytes), whose bytes complete on `summed`.
template <class Traits>
__device__ __forceinline__ void exchange_halves(Accumulators<Traits>& acc, uint32_t sums, uint32_t summed,
                                                uint32_t rank) {
  constexpr int kThreads = Traits::kConsumerThreads, CK = Traits::CK;
  const auto is_own = [rank](int half) { return half % CK == rank; };
  // Where the sums arrive that a block sends to the block `s` before it in the cluster.
  const auto place = [sums](int s, int half) {
    return sums + ((s - 1) * Traits::kOwnHalves + half / CK) * Traits::kHalfSumBytes + threadIdx.x * 16;
  };
  ptx::cluster_wait();  // all threads have arrived at the kernel's start
#pragma unroll
  for (int half = 0; half < Traits::kHalves; ++half) {
    if (is_own(half)) continue;
    const uint32_t owner = half % CK, to = ptx::cluster_map(place((rank + CK - owner) % CK, half), owner);
    const uint32_t done = ptx::cluster_map(summed, owner);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float* v = Halves<Traits>::half_of(acc, half) + 4 * i;
      ptx::cluster_store_async_16(to + i * kThreads * 16, v[0], v[1], v[2], v[3], done);
    }
  }
  ptx::mbarrier_wait(summed, 0);
#pragma unroll
  for (int half = 0; half < Traits::kHalves; ++half) {
    if (!is_own(half)) continue;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float* const v = Halves<Traits>::half_of(acc, half) + 4 * i;
      float4 sum = {-0.0f, -0.0f, -0.0f, -0.0f};  // keeps the sign of a zero
#pragma unroll
      for (uint32_t block = 0; block < CK; ++block) {
        float4 x = {v[0], v[1], v[2], v[3]};
        if (block != rank) {
          const uint32_t from = place((block + CK - rank) % CK, half) + i * kThreads * 16;
          x = *static_cast<const float4*>(__cvta_shared_to_generic(from));
        }
        sum.x += x.x, sum.y += x.y, sum.z += x.z, sum.w += x.w;
      }
      v[0] = sum.x, v[1] = sum.y, v[2] = sum.z, v[3] = sum.w;
    }
  }
}

}  // namespace hgemm::sm90_wgmma
