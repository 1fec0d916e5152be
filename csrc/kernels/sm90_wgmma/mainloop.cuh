// The main loop: one thread loads the stages of the ring, and two warpgroups multiply their contents.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/sm90_wgmma/accumulators.cuh"
#include "kernels/sm90_wgmma/carried_sums.cuh"
#include "kernels/sm90_wgmma/named_barrier.h"
#include "kernels/sm90_wgmma/operands.cuh"
#include "kernels/sm90_wgmma/partial_sums.cuh"
#include "kernels/sm90_wgmma/shared_memory.cuh"
#include "kernels/sm90_wgmma/tile_scheduler.cuh"
#include "kernels/sm90_wgmma/traits.cuh"
#include "ptx/dependent_launch.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/shared.cuh"
#include "ptx/wgmma.cuh"
#include "tile/ring.cuh"

namespace hgemm::sm90_wgmma {

/// Called by the producer thread: loads k-tile `kt` of both operands into the ring's next stage. `is_first`: this is
/// the block's first load, which has to wait for the kernels before this one.
template <class Traits>
__device__ __forceinline__ void load_step(const ParamsOf<Traits>& p, const SharedMemory<Traits>& smem,
                                          const tile::Ring<Traits::STAGES>& ring, const Work& work, const Boxes& boxes,
                                          int kt, bool is_first) {
  const uint32_t bar = smem.full(ring.stage), at = smem.stage(ring.stage);
  ptx::mbarrier_wait(smem.empty(ring.stage), ring.parity ^ 1);
  ptx::mbarrier_arrive_expect_tx(bar, boxes.bytes);
  if (is_first) ptx::grid_dependency_wait();
  Operands<Traits>::each(p, work, boxes, kt, [&](auto operand, int offset, const auto&... from) {
    operand.load(at + offset, bar, from...);
  });
}

/// The main loop of a consumer warpgroup, with one group of wgmma in flight.
template <class Traits>
class MainLoop {
 public:
  /// `row_in_tile`: the warpgroup's first row in the tile.
  __device__ __forceinline__ MainLoop(const ParamsOf<Traits>& p, const SharedMemory<Traits>& smem,
                                      const TileScheduler<Traits>& tiles, tile::Ring<Traits::STAGES>& ring,
                                      int row_in_tile, int lane)
      : p_(p), smem_(smem), tiles_(tiles), ring_(ring), row_in_tile_(row_in_tile), lane_(lane) {}

  /// Starts the wgmma of the next stage, and releases the stage before. GroupedK: only the first `depth` k of the stage
  /// are the group's.
  template <class Acc>
  __device__ __forceinline__ void multiply(Acc& acc, bool is_first, [[maybe_unused]] int depth = Traits::BK) {
    using A = SmemA<Traits>;
    using B = SmemB<Traits>;
    constexpr bool kIsEdge = Traits::kEdged && is_edge<Acc>;
    constexpr int kParts = kIsEdge ? 2 : Traits::WM / 64, kColumns = kIsEdge ? Traits::kEdge : Traits::BN;
    const uint32_t at = smem_.stage(ring_.stage);
    const uint64_t a = A::descriptor(at, (kIsEdge ? 2 : 1) * row_in_tile_);
    const uint64_t b = B::descriptor(at + (kIsEdge ? 2 : 1) * Traits::kStageBytesA, 0);
    ptx::mbarrier_wait(smem_.full(ring_.stage), ring_.parity);
    if constexpr (Traits::kGroupsK) {
      if (depth < Traits::BK) clear_tail(at, depth);
    }
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
        if constexpr (Traits::kGrouped) {
          const Work before = tiles_.work(turn - 1);
          epilogue.recall(before.m0 + row_in_tile_ + static_cast<int>(threadIdx.x) / 32 % 4 * 16, before);
        }
#pragma unroll
        for (int half = 1; half < Traits::kHalves; ++half, ++kt) {
          multiply(acc, half == 1);
          epilogue.send_deferred(half);
        }
      }
    }
    if constexpr (Traits::kGroupsK) {
      for (; kt < work.k_last; ++kt) {
        multiply(acc, kt == work.k_first, kt + 1 == work.k_last ? work.k_tail : Traits::BK);
      }
    } else if constexpr (Traits::kCarries) {
      sums_.clear();
      [[maybe_unused]] int slice = 0;
      int end = kt;  // of the k-tiles that the accumulators add up
      for (; kt < work.k_last; ++kt) {
        const bool begins = kt == end;
        if (begins) {
          if (kt > work.k_first) {
            wait_for_last(acc, true);
            if constexpr (Traits::kCutsSlices) {
              if (kt == partials_at(p_.k_tiles, work.k_first)) add_partials(work);
            }
            sums_.carry(acc);
          }
          if constexpr (Traits::kCutsSlices) {
            end = 0;
            for (int i = 1; end <= kt; ++i) end = slice_end(i);
          } else {
            end = p_.in_slices ? slice_end(++slice) : kt + Traits::kCarrySteps;
          }
        }
        multiply(acc, begins);
      }
    } else {
      for (; kt < work.k_last; ++kt) multiply(acc, kt == work.k_first);
    }
  }
  __device__ __forceinline__ void release(uint32_t stage) const { StageSharing<Traits>::release(smem_, stage, lane_); }
  /// Waits for the last group of wgmma and, with `releases`, releases the last stage. The accumulators are then the
  /// sums over all k-tiles of `work`, and, in a kernel that cuts slices, of its helpers.
  template <class Acc>
  __device__ __forceinline__ void finish(Acc& acc, [[maybe_unused]] const Work& work, bool releases) {
    wait_for_last(acc, releases);
    if constexpr (Traits::kCutsSlices) {
      if (work.k_last == partials_at(p_.k_tiles, work.k_first)) add_partials(work);
    }
    sums_.finish(acc);
  }

 private:
  /// The k-tile behind the first `slices` slices of K, or behind the one that completes the last step of kSliceK.
  __device__ __forceinline__ int slice_end(int slices) const {
    return (p_.k_tiles + kSliceTiles - 1) / kSliceTiles * slices / kSlices * kSliceTiles;
  }
  /// Adds the partial sums of the tile's helpers, which have smaller k, to the sums.
  __device__ __forceinline__ void add_partials(const Work& work) {
    PartialSums<Traits>::add(sums_.sums, work, smem_, ring_, *this);
  }
  template <class Acc>
  __device__ __forceinline__ void wait_for_last(Acc& acc, bool releases) const {
    ptx::wgmma_wait<0>();
    if (releases) release(previous_);
#pragma unroll
    for (auto& part : acc) ptx::wgmma_pin(part);
  }
  /// GroupedK: writes zeros over the k of a stage from `depth` on, which belong to other groups. Both operands are
  /// cleared, because zero times NaN or infinity is NaN.
  __device__ __forceinline__ void clear_tail(uint32_t stage, int depth) const {
    constexpr int kChunks = SmemA<Traits>::kChunks + SmemB<Traits>::kChunks, kLine = SmemA<Traits>::kLine;
    static_assert(!SmemA<Traits>::kIsKMajor && !SmemB<Traits>::kIsKMajor, "a line holds one k");
    static_assert(Traits::kStageBytesA == SmemA<Traits>::kChunks * SmemA<Traits>::kChunkBytes, "chunks are contiguous");
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      const uint32_t first = stage + chunk * SmemA<Traits>::kChunkBytes;
      for (int at = depth * kLine + static_cast<int>(threadIdx.x) % Traits::kTileThreads * 16; at < Traits::BK * kLine;
           at += Traits::kTileThreads * 16) {
        ptx::st_shared_16(first + at, {0, 0, 0, 0});
      }
    }
    ptx::fence_proxy_async();
    ptx::barrier_sync(NamedBarrier::kTailCleared + static_cast<int>(threadIdx.x) / Traits::kTileThreads,
                      Traits::kTileThreads);
  }

  const ParamsOf<Traits>& p_;
  const SharedMemory<Traits>& smem_;
  const TileScheduler<Traits>& tiles_;
  tile::Ring<Traits::STAGES>& ring_;
  int row_in_tile_, lane_;
  uint32_t previous_ = 0;  // stage
  CarriedSums<Traits> sums_;
};

}  // namespace hgemm::sm90_wgmma
