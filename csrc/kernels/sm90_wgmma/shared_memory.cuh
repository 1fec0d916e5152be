// What the warps of a block, and of a cluster, share: memory and barriers.
#pragma once

#include <cstdint>

#include "ptx/cluster.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/smem_addr.cuh"
#include "tile/ring.cuh"

namespace hgemm::sm90_wgmma {

constexpr int kConsumerWarps = 8;
constexpr int kProducerThread = kConsumerWarps * 32;

/// STAGES x { A, B }, staging (split K: sums, then staging), barriers: full, empty, and of the sums, or stream-K's
/// share.
template <class Traits>
class SharedMemory {
 public:
  explicit __device__ __forceinline__ SharedMemory(const unsigned char* bytes) : stages_(ptx::smem_addr(bytes)) {}

  __device__ __forceinline__ uint32_t stage(uint32_t s) const { return stages_ + s * Traits::kStageBytes; }
  __device__ __forceinline__ uint32_t staging() const { return stage(Traits::STAGES); }
  __device__ __forceinline__ uint32_t sums() const {
    return staging() + Traits::kStagingBuffers * Traits::kStagingBytes;
  }
  /// A stage has been loaded.
  __device__ __forceinline__ uint32_t full(uint32_t s) const { return sums() + Traits::kSumBytes + s * 8; }
  /// A stage has been multiplied by all that read it.
  __device__ __forceinline__ uint32_t empty(uint32_t s) const { return full(Traits::STAGES) + s * 8; }
  /// Split K: the other blocks' sums are there.
  __device__ __forceinline__ uint32_t summed() const { return empty(Traits::STAGES); }
  /// Stream-K: 16 bytes of the tile scheduler's.
  __device__ __forceinline__ uint32_t share() const { return empty(Traits::STAGES); }

  /// By one thread.
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

/// Stages that no other block fills or reads.
template <class Traits, bool = (Traits::kSharers > 1)>
struct StageSharing {
  /// All of the block. Split K: the others' barriers are only needed for the sums.
  static __device__ __forceinline__ void meet() { __syncthreads(); }
  /// By each warp that has read the stage.
  static __device__ __forceinline__ void release(const SharedMemory<Traits>& smem, uint32_t stage, int lane) {
    if (lane == 0) ptx::mbarrier_arrive(smem.empty(stage));
  }
  static __device__ __forceinline__ void outlive(const SharedMemory<Traits>&, tile::Ring<Traits::STAGES>&) {}
};

/// Stages that the blocks of a cluster along M or N fill for one another.
template <class Traits>
struct StageSharing<Traits, true> {
  static __device__ __forceinline__ void meet() {
    if (Traits::kStreamK) __syncthreads();  // a relaxed arrival does not show what the tile scheduler's start() wrote
    ptx::cluster_wait();
  }
  static __device__ __forceinline__ void release(const SharedMemory<Traits>& smem, uint32_t stage, int lane) {
    if (lane < Traits::kPeers) ptx::mbarrier_arrive_cluster(smem.empty(stage), peer(lane));
  }
  /// A block must outlive its peers' arrivals: when every stage has been given back, there is none on its way. What the
  /// block sends to its peers, they have waited for.
  static __device__ __forceinline__ void outlive(const SharedMemory<Traits>& smem, tile::Ring<Traits::STAGES>& ring) {
    for (int s = 0; s < Traits::STAGES; ++s, ring.advance()) {
      ptx::mbarrier_wait(smem.empty(ring.stage), ring.parity ^ 1);
    }
  }

 private:
  /// The block of the cluster that the `i`-th arrival goes to: those of this block's column, then the others of its
  /// row.
  static __device__ __forceinline__ uint32_t peer(uint32_t i) {
    if constexpr (Traits::CM == 1 || Traits::CN == 1) return i;
    const uint32_t rank = ptx::cluster_rank(), column = rank / Traits::CM;
    if (i < Traits::CM) return column * Traits::CM + i;
    return rank % Traits::CM + (column + 1 + i - Traits::CM) % Traits::CN * Traits::CM;
  }
};

}  // namespace hgemm::sm90_wgmma
