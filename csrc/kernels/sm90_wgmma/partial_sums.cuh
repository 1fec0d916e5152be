// Stream-K: the partial sums of a split tile, which one cluster stores to global memory and another adds.
#pragma once

#include <cstdint>

#include "kernels/sm90_wgmma/accumulators.cuh"
#include "kernels/sm90_wgmma/named_barrier.h"
#include "kernels/sm90_wgmma/shared_memory.cuh"
#include "kernels/sm90_wgmma/tile_scheduler.cuh"
#include "kernels/sm90_wgmma/traits.cuh"
#include "ptx/bulk.cuh"
#include "ptx/flag.cuh"
#include "ptx/mbarrier.cuh"
#include "tile/ring.cuh"

namespace hgemm::sm90_wgmma {

/// Kernels whose clusters compute whole tiles have no partial sums.
template <class Traits, bool = Traits::kStreamK>
struct PartialSums {
  using Ring = tile::Ring<Traits::STAGES>;
  /// The number of stages that the tile of iteration `turn` takes.
  static __device__ __forceinline__ uint32_t stages(const Params& p, const TileScheduler<Traits>& tiles,
                                                    uint32_t turn) {
    if constexpr (Traits::kGroupsK) return tiles.k_tiles(turn);
    return p.k_tiles;
  }
  static __device__ __forceinline__ void load(const Params&, const Work&, const SharedMemory<Traits>&, Ring&) {}
  static __device__ __forceinline__ void announce(const Params&, const TileScheduler<Traits>&, int, int) {}
  static __device__ __forceinline__ void leave(const Params&, const Accumulators<Traits>&) {}
  template <class MainLoop>
  static __device__ __forceinline__ void add(Accumulators<Traits>&, const Work&, const SharedMemory<Traits>&, Ring&,
                                             const MainLoop&) {}
};

template <class Traits>
struct PartialSums<Traits, true> {
  using Ring = tile::Ring<Traits::STAGES>;
  static __device__ __forceinline__ uint32_t stages(const Params&, const TileScheduler<Traits>& tiles, uint32_t turn) {
    const Work work = tiles.work(turn);
    return work.k_last - work.k_first + work.helpers * Traits::kPartialStages;
  }

  /// Called by the producer thread: loads the partial sums that other clusters have stored for the tile.
  static __device__ __forceinline__ void load(const StreamKParams& p, const Work& work,
                                              const SharedMemory<Traits>& smem, Ring& ring) {
    for (uint32_t h = 1; h <= work.helpers; ++h) {
      const uint32_t before = Traits::kCutsSlices ? work.helpers + 1 - h : h;
      const uint32_t block = blockIdx.x - before * Traits::kCluster;  // the block of the same rank
      while (ptx::flag_load(p.flags + block) != p.tag) {
      }
      p.flags[block] = 0;               // for the next replay of a graph; no other thread reads it
      ptx::fence_proxy_async_global();  // ordinary stores wrote the sums, bulk copies read them
      const unsigned char* from = p.partials + size_t{block} * Traits::kPartialBytes;
      int left = Traits::kPartialBytes;
      for (int i = 0; i < Traits::kPartialStages; ++i, ring.advance()) {
        const uint32_t bar = smem.full(ring.stage);
        const int bytes = min(left, Traits::kStageHalves * Traits::kHalfBytes);
        ptx::mbarrier_wait(smem.empty(ring.stage), ring.parity ^ 1);
        ptx::mbarrier_arrive_expect_tx(bar, bytes);
        ptx::bulk_load(smem.stage(ring.stage), from, bytes, bar);
        from += bytes, left -= bytes;
      }
    }
  }

  /// Warp 9: waits until the consumers have stored the block's partial sums, and sets the flag. The named barrier
  /// orders the consumers' stores before the flag. A release is cumulative: it covers all that its thread has observed,
  /// so whoever acquires the flag sees these stores.
  static __device__ __forceinline__ void announce(const StreamKParams& p, const TileScheduler<Traits>& tiles, int warp,
                                                  int lane) {
    if (warp == kConsumerWarps + 1 && tiles.partials() > 0) {
      ptx::barrier_sync(NamedBarrier::kPartialsWritten, Traits::kPartialsThreads);
      if (lane == 0) ptx::flag_store(p.flags + blockIdx.x, p.tag);
    }
  }

  /// Called by the consumers: stores the accumulators to this block's partial sums, (kHalves * 4, kReaders, 16 bytes).
  static __device__ __forceinline__ void leave(const StreamKParams& p, const Accumulators<Traits>& acc) {
    unsigned char* own = p.partials + size_t{blockIdx.x} * Traits::kPartialBytes + threadIdx.x % Traits::kReaders * 16;
#pragma unroll
    for (int half = 0; half < Traits::kHalves; ++half) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float* v = Halves<Traits>::half_of(acc, half) + 4 * i;
        *reinterpret_cast<float4*>(own + half * Traits::kHalfBytes + i * Traits::kReaders * 16) =
            make_float4(v[0], v[1], v[2], v[3]);
      }
    }
    ptx::barrier_arrive(NamedBarrier::kPartialsWritten, Traits::kPartialsThreads);
  }

  /// Called by the consumers: adds the partial sums that the producer has loaded, and releases their stages.
  template <class MainLoop>
  static __device__ __forceinline__ void add(Accumulators<Traits>& acc, const Work& work,
                                             const SharedMemory<Traits>& smem, Ring& ring, const MainLoop& main_loop) {
    constexpr int kInStage = Traits::kStageHalves;
#pragma unroll 1
    for (uint32_t h = 0; h < work.helpers; ++h) {
#pragma unroll
      for (int half = 0; half < Traits::kHalves; ++half) {
        if (half % kInStage == 0) ptx::mbarrier_wait(smem.full(ring.stage), ring.parity);
        add_half(acc, half, smem.stage(ring.stage) + half % kInStage * Traits::kHalfBytes);
        if (half % kInStage == kInStage - 1 || half == Traits::kHalves - 1) {
          // An arrival at another block's barrier may overtake the ordinary loads before it, and the bytes that TMA
          // writes next are not ordered with these loads.
          ptx::fence_proxy_async();
          __syncwarp();
          main_loop.release(ring.stage);
          ring.advance();
        }
      }
    }
  }

 private:
  static __device__ __forceinline__ void add_half(Accumulators<Traits>& acc, int half, uint32_t partial) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t at = partial + (i * Traits::kReaders + threadIdx.x % Traits::kReaders) * 16;
      const float4 x = *static_cast<const float4*>(__cvta_shared_to_generic(at));
      float* v = Halves<Traits>::half_of(acc, half) + 4 * i;
      v[0] += x.x, v[1] += x.y, v[2] += x.z, v[3] += x.w;
    }
  }
};

}  // namespace hgemm::sm90_wgmma
