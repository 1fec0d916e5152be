// The epilogue of int8 products: from a consumer warpgroup's int32 accumulators to D, as they are.
#pragma once

#include <cstdint>

#include "kernels/sm90_wgmma/accumulators.cuh"
#include "kernels/sm90_wgmma/epilogue.cuh"
#include "kernels/sm90_wgmma/shared_memory.cuh"
#include "kernels/sm90_wgmma/tile_scheduler.cuh"
#include "kernels/sm90_wgmma/traits.cuh"
#include "ptx/shared.cuh"
#include "ptx/tma.cuh"

namespace hgemm::sm90_wgmma {

/// Stores the result of a consumer warpgroup, one 32-column subtile (`half`) at a time. A row of a subtile is one line
/// of 128 bytes in the staging buffer, and TMA writes each warp's 16 rows. The tensor map of D counts elements of 16
/// bits, two for a result.
template <class Traits>
class Epilogue<Traits, true> {
  using Halves = sm90_wgmma::Halves<Traits>;
  static constexpr int kLine = 128;  // bytes of a row of the staging buffer

 public:
  __device__ __forceinline__ Epilogue(const Params& p, uint32_t staging)
      : p_(p), staging_(staging), lane_(threadIdx.x % 32) {}
  __device__ __forceinline__ void stage_in_ring(uint32_t ring) {
    staging_ = ring;
    sent_ = 0;
    reuses_ = false;
  }
  __device__ __forceinline__ void finish_tile(const Accumulators<Traits>& acc, const SharedMemory<Traits>&, int row0,
                                              const Work& work, bool) {
#pragma unroll
    for (int half = 0; half < Traits::kHalves; ++half) {
      if (reuses_) {
        if (lane_ == 0) ptx::tma_store_wait_read<Traits::kStagingBuffers - 1>();
        __syncwarp();
      }
      const uint32_t buffer = staging_ + sent_ * Traits::kStagingBytes;
      stage(Halves::half_of(acc, half), buffer);
      ptx::fence_proxy_async();
      __syncwarp();
      if (lane_ == 0) {
        ptx::tma_store(&p_.d, buffer, {2 * Halves::col_of(half, work), Halves::row_of(half, row0, work), 0, 0});
        ptx::tma_store_commit();
      }
      sent_ = reuses_ ? (sent_ + 1) % Traits::kStagingBuffers : sent_ + 1;
    }
  }
  __device__ __forceinline__ void drain() {
    if (lane_ == 0) ptx::tma_store_wait_read<0>();
  }

 private:
  /// Stores a warp's sums of 16 rows and 32 columns to the buffer's swizzled lines. A lane has two adjacent columns of
  /// eight, in two rows (ptx/wgmma.cuh).
  __device__ __forceinline__ void stage(const int32_t* v, uint32_t buffer) const {
    const int row = lane_ / 4, chunk = lane_ % 4 / 2;
    const uint32_t first = ptx::opaque(buffer + row * kLine + (chunk ^ row) * 16 + lane_ % 2 * 8);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const uint32_t at = first ^ j * 32;
      ptx::st_shared_8(at, v[4 * j], v[4 * j + 1]);
      ptx::st_shared_8(at + 8 * kLine, v[4 * j + 2], v[4 * j + 3]);
    }
  }

  const Params& p_;
  uint32_t staging_;  // (kStagingBuffers, 16, 128 bytes)
  int lane_;
  bool reuses_ = true;  // false where every subtile has a buffer of its own
  uint32_t sent_ = 0;   // the next buffer
};

}  // namespace hgemm::sm90_wgmma
