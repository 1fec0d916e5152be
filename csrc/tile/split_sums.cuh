// Sums of kernels that multiply planes by wgmma (sm_90a), in two float32 registers each.
#pragma once

#include "ptx/wgmma.cuh"
#include "tile/split_product.cuh"

namespace hgemm::tile::split {

/// A thread's sums, each in two registers (add_rest() in split_product.cuh).
template <int COUNT, int LOW_BITS = 0>
struct TwoSums {
  static constexpr int kCount = COUNT;
  float high[kCount], low[kCount];

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int i = 0; i < kCount; ++i) high[i] = low[i] = 0;
  }
  /// Adds the products of the first planes, which the tensor core has written to `x`. It leaves there what the
  /// roundings lose.
  __device__ __forceinline__ void add_first(float (&x)[kCount]) {
    ptx::wgmma_pin(x);
#pragma unroll
    for (int i = 0; i < kCount; ++i) add_keeping_rest(high[i], x[i]);
  }
  /// Adds what add_first() has left, when the tensor core has added all other products to `low`.
  __device__ __forceinline__ void add_rest(const float (&x)[kCount]) {
    ptx::wgmma_pin(low);
#pragma unroll
    for (int i = 0; i < kCount; ++i) split::add_rest<LOW_BITS>(low[i], x[i]);
  }
  /// Moves what it can from `low` to `high`, so that `low` stays small.
  __device__ __forceinline__ void carry() {
#pragma unroll
    for (int i = 0; i < kCount; ++i) carry_low<LOW_BITS>(high[i], low[i]);
  }
};

}  // namespace hgemm::tile::split
