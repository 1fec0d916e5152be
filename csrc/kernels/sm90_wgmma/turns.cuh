// How the two consumer warpgroups share the tiles of a block: the pingpong and the cooperative schedule.
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

constexpr uint32_t kRehearsal = ~0u;  // the iteration before the first; ++ makes it 0

/// The schedule of the consumer warpgroups: which iterations of the block's persistent loop (a turn in identifiers) a
/// warpgroup takes part in, and how it synchronises with the other one. Cooperative: both take every tile, each half of
/// its rows.
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

/// Pingpong: the warpgroups take the tiles alternately, so that one multiplies while the other is in its epilogue.
///
/// A block with a single tile runs the epilogue only once, and its instructions then have to come from L2. So the
/// warpgroup without a tile runs the epilogue beforehand, on rows beyond D, of which TMA stores nothing. This rehearsal
/// warms the instruction cache. Blocks with tiles of 64 rows finish sooner without it, and those of grouped kernels
/// start too late for it.
template <class Traits>
class Turns<Traits, true> {
 public:
  static constexpr bool kRehearses = !Traits::kStreamK && !Traits::kGrouped && !Traits::kGroupsK && Traits::BM > 64;
  __device__ __forceinline__ Turns(const TileScheduler<Traits>& tiles, int group) : tiles_(tiles), group_(group) {}
  static __device__ __forceinline__ int row_in_tile() { return 0; }
  __device__ __forceinline__ uint32_t first() const {
    return kRehearses && group_ == 1 && !tiles_.has(1) ? kRehearsal : 0;
  }
  static __device__ __forceinline__ void rehearse(Work& work) { work.m0 = kBeyondD, work.k_last = work.k_first; }
  /// Waits until the warpgroup may start the tile of iteration `turn`. Returns false if the tile is the other
  /// warpgroup's, and skips its stages.
  template <class Ring>
  __device__ __forceinline__ bool begin(const ParamsOf<Traits>& p, uint32_t turn, Ring& ring, bool rehearses) const {
    if (turn % 2 != group_) {
      ring.skip(PartialSums<Traits>::stages(p, tiles_, turn));
      return false;
    }
    if (turn > 0 && !rehearses) ptx::barrier_sync(NamedBarrier::kMathOrder + group_, Traits::kConsumerThreads);
    return true;
  }
  /// Lets the other warpgroup start its next tile. A phase's parity distinguishes a use of a stage from the use before,
  /// but not from the last but one. So the other warpgroup must not go on before this one has waited for everything
  /// that precedes its stages in the ring, partial sums included.
  __device__ __forceinline__ void hand_over(uint32_t turn) const {
    if (tiles_.has(turn + 1)) ptx::barrier_arrive(NamedBarrier::kMathOrder + 1 - group_, Traits::kConsumerThreads);
  }
  /// Makes the epilogue of the block's last tile stage its results in the ring. Stream-K kernels have no registers for
  /// it, and the tiles of GroupedK kernels may have fewer k-tiles than the ring has stages.
  __device__ __forceinline__ void before_last_epilogue(const Params& p, uint32_t turn, bool rehearses,
                                                       const SharedMemory<Traits>& smem, int warp,
                                                       Epilogue<Traits>& epilogue) const {
    constexpr int kBuffers = Traits::kEpilogueTiles * (Traits::kSymmetric ? 2 : 1);
    constexpr bool kFits = kBuffers * Traits::kStagingBytes <= Traits::STAGES * Traits::kStageBytes;
    static_assert(kFits || Traits::kSymmetric, "whose largest tiles have too many buffers");
    // Every stage has been refilled for this tile, so the other warpgroup has released all of them.
    if (!Traits::kStreamK && !Traits::kGroupsK && kFits && p.k_tiles >= Traits::STAGES && !rehearses &&
        !tiles_.has(turn + 1)) {
      // The other warps of this warpgroup must have read the stages, too.
      ptx::barrier_sync(NamedBarrier::kStagesRead + group_, Traits::kWarpgroupThreads);
      epilogue.stage_in_ring(smem.stage(0) + warp * Traits::kStagingWarpBytes);
    }
  }

 private:
  static constexpr int kBeyondD = 1 << 30;  // a row that D does not have

  const TileScheduler<Traits>& tiles_;
  int group_;
};

}  // namespace hgemm::sm90_wgmma
