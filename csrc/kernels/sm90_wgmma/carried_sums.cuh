// Sums in float32 registers, to which a Carried kernel adds its accumulators (Carried in config.h).
#pragma once

#include "kernels/sm90_wgmma/accumulators.cuh"

namespace hgemm::sm90_wgmma {

/// Other kernels accumulate all of K in the accumulators.
template <class Traits, bool = Traits::kCarries>
struct CarriedSums {
  template <class Acc>
  __device__ __forceinline__ void finish(Acc&) {}
};

template <class Traits>
struct CarriedSums<Traits, true> {
  Accumulators<Traits> sums;

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (float& sum : sums[0]) sum = -0.0f;  // keeps the sign of a zero
  }
  /// Adds the accumulators, of which no wgmma is in flight, to the sums.
  __device__ __forceinline__ void carry(const Accumulators<Traits>& acc) {
#pragma unroll
    for (int i = 0; i < Traits::BN / 2; ++i) sums[0][i] += acc[0][i];
  }
  /// Replaces the accumulators by the sums over all of K.
  __device__ __forceinline__ void finish(Accumulators<Traits>& acc) {
    carry(acc);
#pragma unroll
    for (int i = 0; i < Traits::BN / 2; ++i) acc[0][i] = sums[0][i];
  }
};

}  // namespace hgemm::sm90_wgmma
