// The shared memory and mbarriers of a block, and how the blocks of a cluster share pipeline stages.
#pragma once

#include <cstdint>

#include "ptx/cluster.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/smem_addr.cuh"
#include "tile/ring.cuh"

namespace hgemm::sm90_wgmma {

constexpr int kConsumerWarps = 8;
constexpr int kProducerThread = kConsumerWarps * 32;

/// The layout of shared memory: STAGES x { A, B }; staging buffers, or with split-K a buffer for sums that later serves
/// as staging; the mbarriers full, empty and, with split-K, summed; with stream-K, 16 bytes of the tile scheduler; in
/// grouped kernels, its table.
template <class Traits>
class SharedMemory {
 public:
  explicit __device__ __forceinline__ SharedMemory(const unsigned char* bytes) : stages_(ptx::smem_addr(bytes)) {}

  __device__ __forceinline__ uint32_t stage(uint32_t s) const { return stages_ + s * Traits::kStageBytes; }
  __device__ __forceinline__ uint32_t staging() const { return stage(Traits::STAGES); }
  __device__ __forceinline__ uint32_t sums() const {
    return staging() + Traits::kStagingBuffers * Traits::kStagingBytes;
  }
  /// Completes when a stage has been loaded.
  __device__ __forceinline__ uint32_t full(uint32_t s) const { return sums() + Traits::kSumBytes + s * 8; }
  /// Completes when all warps that read a stage have done so.
  __device__ __forceinline__ uint32_t empty(uint32_t s) const { return full(Traits::STAGES) + s * 8; }
  /// Split-K: completes when the other blocks' sums have arrived.
  __device__ __forceinline__ uint32_t summed() const { return empty(Traits::STAGES); }
  /// What the tile scheduler writes and reads. Stream-K: the cluster's Share, 16 bytes. Grouped: a table of work tiles.
  /// GroupedK: the ends of the groups, and the groups in the order of their k.
  __device__ __forceinline__ uint32_t share() const { return empty(Traits::STAGES); }

  /// Called by one thread.
  __device__ __forceinline__ void init_barriers() const {
    for (int s = 0; s < Traits::STAGES; ++s) {
      ptx::mbarrier_init(full(s), Traits::kFullArrivals);
      ptx::mbarrier_init(empty(s), Traits::kEmptyArrivals);
    }
    if (Traits::CK > 1) {
      ptx::mbarrier_init(summed(), Traits::kSummedArrivals);
      ptx::mbarrier_arrive_expect_tx(summed(), Traits::kSumBytes);
    }
    ptx::fence_mbarrier_init();
  }

 private:
  uint32_t stages_;
};

/// How the blocks of a cluster share stages. Here: no other block fills or reads this block's stages.
template <class Traits, bool = (Traits::kSharers > 1)>
struct StageSharing {
  /// Called by all threads, once the mbarriers are made. Split-K: the mbarriers of other blocks are only needed for the
  /// sums, so the consumers wait for these later.
  static __device__ __forceinline__ void meet() { __syncthreads(); }
  /// Called by each warp that has read the stage.
  static __device__ __forceinline__ void release(const SharedMemory<Traits>& smem, uint32_t stage, int lane) {
    if (lane == 0) ptx::mbarrier_arrive(smem.empty(stage));
  }
  static __device__ __forceinline__ void outlive(const SharedMemory<Traits>&, tile::Ring<Traits::STAGES>&) {}
};

/// The blocks of a cluster along M or N fill stages for one another.
template <class Traits>
struct StageSharing<Traits, true> {
  static __device__ __forceinline__ void meet() {
    if (Traits::kStreamK) __syncthreads();  // a relaxed arrival does not show what the tile scheduler's start() wrote
    ptx::cluster_wait();
  }
  static __device__ __forceinline__ void release(const SharedMemory<Traits>& smem, uint32_t stage, int lane) {
    if (lane < Traits::kPeers) ptx::mbarrier_arrive_cluster(smem.empty(stage), peer(lane));
  }
  /// Keeps the block alive until its peers' arrivals have come: once every stage is empty, no arrival is on its way.
  /// The block's own multicasts need no wait, because their receivers have waited for them.
  static __device__ __forceinline__ void outlive(const SharedMemory<Traits>& smem, tile::Ring<Traits::STAGES>& ring) {
    for (int s = 0; s < Traits::STAGES; ++s, ring.advance()) {
      ptx::mbarrier_wait(smem.empty(ring.stage), ring.parity ^ 1);
    }
  }

 private:
  /// The block of the cluster to which the `i`-th arrival goes: first the blocks of this block's column, then the other
  /// blocks of its row.
  static __device__ __forceinline__ uint32_t peer(uint32_t i) {
    if constexpr (Traits::CM == 1 || Traits::CN == 1) return i;
    const uint32_t rank = ptx::cluster_rank(), column = rank / Traits::CM;
    if (i < Traits::CM) return column * Traits::CM + i;
    return rank % Traits::CM + (column + 1 + i - Traits::CM) % Traits::CN * Traits::CM;
  }
};

}  // namespace hgemm::sm90_wgmma
