// The main loop: one thread loads the stages of the ring, and two warpgroups multiply their contents.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/sm90_wgmma/accumulators.cuh"
#include "kernels/sm90_wgmma/operands.cuh"
#include "kernels/sm90_wgmma/partial_sums.cuh"
#include "kernels/sm90_wgmma/shared_memory.cuh"
#include "kernels/sm90_wgmma/tile_scheduler.cuh"
#include "kernels/sm90_wgmma/traits.cuh"
#include "ptx/dependent_launch.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/wgmma.cuh"
#include "tile/ring.cuh"

namespace hgemm::sm90_wgmma {

/// Called by the producer thread: loads k-tile `kt` of both operands into the ring's next stage. `is_first`: this is
/// the block's first load, which has to wait for the kernels before this one.
template <class Traits>
__device__ __forceinline__ void load_step(const ParamsOf<Traits>& p, const SharedMemory<Traits>& smem,
                                          const tile::Ring<Traits::STAGES>& ring, const Work& work, int kt,
                                          bool is_first) {
  const uint32_t bar = smem.full(ring.stage), at = smem.stage(ring.stage);
  ptx::mbarrier_wait(smem.empty(ring.stage), ring.parity ^ 1);
  ptx::mbarrier_arrive_expect_tx(bar, Operands<Traits>::loaded_bytes(work));
  if (is_first) ptx::grid_dependency_wait();
  Operands<Traits>::each(
      p, work, kt, [&](auto operand, int offset, const auto&... from) { operand.load(at + offset, bar, from...); });
}

/// The main loop of a consumer warpgroup, with one group of wgmma in flight.
template <class Traits>
class MainLoop {
 public:
  /// `row_in_tile`: the warpgroup's first row in the tile.
  __device__ __forceinline__ MainLoop(const Params& p, const SharedMemory<Traits>& smem,
                                      const TileScheduler<Traits>& tiles, tile::Ring<Traits::STAGES>& ring,
                                      int row_in_tile, int lane)
      : p_(p), smem_(smem), tiles_(tiles), ring_(ring), row_in_tile_(row_in_tile), lane_(lane) {}

  /// Starts the wgmma of the next stage, and releases the stage before.
  template <class Acc>
  __device__ __forceinline__ void multiply(Acc& acc, bool is_first) {
    using A = SmemA<Traits>;
    using B = SmemB<Traits>;
    constexpr bool kIsEdge = Traits::kEdged && is_edge<Acc>;
    constexpr int kParts = kIsEdge ? 2 : Traits::WM / 64, kColumns = kIsEdge ? Traits::kEdge : Traits::BN;
    const uint32_t at = smem_.stage(ring_.stage);
    const uint64_t a = A::descriptor(at, (kIsEdge ? 2 : 1) * row_in_tile_);
    const uint64_t b = B::descriptor(at + (kIsEdge ? 2 : 1) * Traits::kStageBytesA, 0);
    ptx::mbarrier_wait(smem_.full(ring_.stage), ring_.parity);
    ptx::wgmma_fence();
#pragma unroll
    for (int step = 0; step < Traits::BK / 16; ++step) {
#pragma unroll
      for (int i = 0; i < kParts; ++i) {
        ptx::Wgmma<typename Traits::T>::template m64k16<kColumns, A::kTranspose, B::kTranspose>(
            acc[i], ptx::wgmma_advance(a, i * A::kChunkBytes + step * A::kStepBytes),
            ptx::wgmma_advance(b, step * B::kStepBytes), !is_first || step > 0);
      }
    }
    ptx::wgmma_commit();
    ptx::wgmma_wait<1>();
    if (!is_first) release(previous_);
    previous_ = ring_.stage;
    ring_.advance();
  }
  /// Runs over all k-tiles of a tile; the last group of wgmma is still in flight afterwards. If `epilogue` has deferred
  /// stores of the tile before, they are issued between the first k-tiles.
  template <class Acc, class Epilogue>
  __device__ __forceinline__ void run(Acc& acc, const Work& work, uint32_t turn, Epilogue& epilogue) {
    int kt = work.k_first;
    if constexpr (Traits::kDefers) {
      if (p_.defers && turn > tiles_.partials()) {
#pragma unroll
        for (int half = 1; half < Traits::kHalves; ++half, ++kt) {
          multiply(acc, half == 1);
          epilogue.send_deferred(half);
        }
      }
    }
    for (; kt < work.k_last; ++kt) multiply(acc, kt == work.k_first);
  }
  __device__ __forceinline__ void release(uint32_t stage) const { StageSharing<Traits>::release(smem_, stage, lane_); }
  /// Waits for the last group of wgmma and, with `releases`, releases the last stage.
  template <class Acc>
  __device__ __forceinline__ void finish(Acc& acc, bool releases) const {
    ptx::wgmma_wait<0>();
    if (releases) release(previous_);
#pragma unroll
    for (auto& part : acc) ptx::wgmma_pin(part);
  }

 private:
  const Params& p_;
  const SharedMemory<Traits>& smem_;
  const TileScheduler<Traits>& tiles_;
  tile::Ring<Traits::STAGES>& ring_;
  int row_in_tile_, lane_;
  uint32_t previous_ = 0;  // stage
};

}  // namespace hgemm::sm90_wgmma
