// How the two consumer warpgroups share the tiles of a block.
#pragma once

#include <cstdint>

#include "kernels/sm90_wgmma/epilogue.cuh"
#include "kernels/sm90_wgmma/named_barrier.h"
#include "kernels/sm90_wgmma/partial_sums.cuh"
#include "kernels/sm90_wgmma/shared_memory.cuh"
#include "kernels/sm90_wgmma/tile_scheduler.cuh"
#include "kernels/sm90_wgmma/traits.cuh"
#include "ptx/mbarrier.cuh"

namespace hgemm::sm90_wgmma {

constexpr uint32_t kRehearsal = ~0u;  // the turn before the first

/// Cooperative: both take every tile, each half of its rows.
template <class Traits, bool = Traits::kPingpong>
class Turns {
 public:
  static constexpr bool kRehearses = false;
  __device__ __forceinline__ Turns(const TileScheduler<Traits>&, int group) : group_(group) {}
  __device__ __forceinline__ int row_in_tile() const { return group_ * Traits::WM; }
  static __device__ __forceinline__ uint32_t first() { return 0; }
  static __device__ __forceinline__ void rehearse(Work&) {}
  template <class Ring>
  static __device__ __forceinline__ bool begin(const Params&, uint32_t, Ring&, bool) {
    return true;
  }
  static __device__ __forceinline__ void hand_over(uint32_t) {}
  static __device__ __forceinline__ void before_last_epilogue(const Params&, uint32_t, bool,
                                                              const SharedMemory<Traits>&, int, Epilogue<Traits>&) {}

 private:
  int group_;
};

/// Pingpong: every other tile is a warpgroup's own; while one multiplies, the other writes.
///
/// A block with a single tile runs its epilogue once, while its instructions come from L2. The warpgroup that has no
/// tile runs it before, on rows beyond D, of which TMA stores nothing: a rehearsal. Tiles of 64 rows are sooner through
/// without.
template <class Traits>
class Turns<Traits, true> {
 public:
  static constexpr bool kRehearses = !Traits::kStreamK && Traits::BM > 64;
  __device__ __forceinline__ Turns(const TileScheduler<Traits>& tiles, int group) : tiles_(tiles), group_(group) {}
  static __device__ __forceinline__ int row_in_tile() { return 0; }
  __device__ __forceinline__ uint32_t first() const {
    return kRehearses && group_ == 1 && !tiles_.has(1) ? kRehearsal : 0;
  }
  static __device__ __forceinline__ void rehearse(Work& work) { work.m0 = kBeyondD, work.k_last = work.k_first; }
  /// Waits for the warpgroup's turn. False where it is the other one's, whose stages are passed over.
  template <class Ring>
  __device__ __forceinline__ bool begin(const ParamsOf<Traits>& p, uint32_t turn, Ring& ring, bool rehearses) const {
    if (turn % 2 != group_) {
      ring.skip(PartialSums<Traits>::stages(p, tiles_, turn));
      return false;
    }
    if (turn > 0 && !rehearses) ptx::barrier_sync(NamedBarrier::kMathOrder + group_, Traits::kConsumerThreads);
    return true;
  }
  /// A parity tells a stage's use from the one before, not from the last but one: the other warpgroup must not go on
  /// until this one has waited for all that comes before in the ring, partial sums included.
  __device__ __forceinline__ void hand_over(uint32_t turn) const {
    if (tiles_.has(turn + 1)) ptx::barrier_arrive(NamedBarrier::kMathOrder + 1 - group_, Traits::kConsumerThreads);
  }
  /// Has the last tile staged in the ring. Stream-K has no registers for it.
  __device__ __forceinline__ void before_last_epilogue(const Params& p, uint32_t turn, bool rehearses,
                                                       const SharedMemory<Traits>& smem, int warp,
                                                       Epilogue<Traits>& epilogue) const {
    // Every stage has been refilled for this tile, and so been given back by the other warpgroup.
    if (!Traits::kStreamK && p.k_tiles >= Traits::STAGES && !rehearses && !tiles_.has(turn + 1)) {
      static_assert(Traits::kHalves / 2 * Traits::kStagingBytes <= Traits::STAGES * Traits::kStageBytes);
      // The other warps must have read the stages, too.
      ptx::barrier_sync(NamedBarrier::kStagesRead + group_, Traits::kWarpgroupThreads);
      epilogue.stage_in_ring(smem.stage(0) + warp * Traits::kStagingWarpBytes);
    }
  }

 private:
  static constexpr int kBeyondD = 1 << 30;  // no row of D

  const TileScheduler<Traits>& tiles_;
  int group_;
};

}  // namespace hgemm::sm90_wgmma
