// The tensor-core GEMM for Hopper (sm_90a): TMA fills a ring of shared-memory stages, and wgmma reads its operands
// there.
//
// The kernel is persistent: a block of three warpgroups stays on its SM and computes one output tile of C after
// another. One thread of the producer warpgroup runs ahead and keeps the ring full, across the ends of tiles. Two
// consumer warpgroups multiply, with one group of wgmma in flight, and write the results. In a pingpong kernel the
// consumers take the tiles alternately, so that the epilogue of one runs under the main loop of the other. In a
// cooperative kernel they share the rows of each tile, which would not fit the registers of one warpgroup. In a cluster
// along M or N each block loads a part of the operand tiles that its peers need as well and multicasts it: A to its row
// of blocks, B to its column. In a cluster along K the blocks split the sum of one tile (split-K) and reduce it through
// distributed shared memory.
//
// Both operands may be K-major or MN-major: a stage keeps the order that the operand has in memory, in 128-byte
// swizzle, and wgmma transposes.
//
// Early PDL trigger: a launch may start while its predecessor in the stream drains (programmatic dependent launch).
// Blocks make their barriers, find their first tile and prefetch its first k-tile to L2. Then they wait until
// everything before them in the stream has finished. Stream-K's partial sums and flags need that wait as well:
// the predecessor may still read and write its own in the same memory.
//
// Barriers. The peers of a block are the blocks of its cluster that load for it, and that it loads for, itself included
// (Config::kPeers). g is a consumer warpgroup, 0 or 1.
//
//   mbarrier        completes a phase      who arrives                            who waits
//   full[STAGES]    kFullArrivals and      the producer thread, which announces   the consumer threads of the tile,
//                   the announced bytes    the stage's bytes; the TMA loads of    before they read the stage
//                                          all peers complete the bytes
//   empty[STAGES]   kEmptyArrivals         one lane of each consumer warp of      the producer thread, before it loads
//                                          the tile, in each peer, once the       the stage; in a cluster along M or N
//                                          warp has read the stage                also at its end, for every stage
//   summed          kSummedArrivals and    thread 0, when it makes the barrier;   all consumer threads, once
//   (split-K)       kSumBytes              st.async of the other blocks
//                                          completes the bytes
//
//   named barrier              threads            who arrives                     who waits
//   kMathOrder + g             kConsumerThreads   warpgroup 1 - g, once it has    warpgroup g, before the main loop of
//   (pingpong)                                    waited for the last stage of    each of its tiles but the block's
//                                                 its tile, if there is a next    first
//   kPartialsWritten           kPartialsThreads   the consumers of the tile,      warp 9, which then sets the flag
//   (stream-K)                                    once they have stored their
//                                                 partial sums
//   kStagesRead + g            kWarpgroupThreads  warpgroup g                     warpgroup g, before its last epilogue
//   (pingpong, no stream-K)                                                       stages results in the ring
//   kEpilogueTile + g          kWarpgroupThreads  warpgroup g                     warpgroup g, before it reuses a
//   (SwapAB, Symmetric)                                                           staging buffer and after it fills one
//   kSumsRead (split-K)        kConsumerThreads   all consumers                   all consumers, before results replace
//                                                                                 the sums in shared memory
//   kTailCleared + g           kTileThreads       the consumers of the tile;      the same, once they have cleared what
//   (GroupedK)                                    cooperative: g = 0              a stage has of the next group
//
//   The barrier of the cluster is used once. Every thread arrives, relaxed, thread 0 after it has made the mbarriers.
//   In a cluster along M or N all threads then wait before the first load. With split-K only the consumers wait, before
//   they send sums. Without a cluster along M or N, and in every stream-K kernel, the block also meets once at
//   __syncthreads, before the first load.
//
// Timeline of each role:
//
//   producer thread (warp 8, lane 0)
//     before the first load: wait for the kernels before this one
//     for each tile:
//       for each k-tile: wait empty; announce the bytes on full; start the TMA loads
//       stream-K, for each cluster that left partial sums of the tile: wait for its flag;
//                        load the sums through the ring, with the same two barriers (kCutsSlices: before the k-tile
//                        partials_at())
//     in a cluster along M or N: wait until every stage is empty
//   warp 9, if the block leaves partial sums (stream-K)
//     wait kPartialsWritten; set the flag of the block's partial sums
//   warps 9 to 11 (GroupedK)
//     write the zeros of the groups without k
//   all other threads of the producer warpgroup
//     exit at once
//   grouped kernels, all threads, before any of this
//     wait for the kernels before this one (is_launch() has an exception); write the scheduler's table
//     (tile_scheduler.cuh), with __syncthreads
//   consumer warpgroup g, pingpong
//     wait for the kernels before this one
//     for every second tile:
//       wait kMathOrder + g
//       for each k-tile: wait full; start wgmma; wait for the wgmma group before; release the stage before
//       arrive at kMathOrder + 1 - g
//       wait for the last wgmma group; release the last stage
//       epilogue
//   consumer warpgroups, cooperative
//     wait for the kernels before this one
//     for each tile:
//       for each k-tile: wait full; start wgmma; wait for the wgmma group before; release the stage before;
//                        with deferred stores, in the first kHalves - 1 k-tiles: stage or store 32 columns of the tile
//                        before; with carried sums, before every kCarrySteps k-tiles, or at the end of each slice of
//                        K: wait for the last wgmma group, release its stage, add the accumulators to the sums
//       wait for the last wgmma group; release the last stage
//       epilogue; with deferred stores it rounds all results, and stages the first 32 columns only
//
//   A stream-K consumer that leaves partial sums stores its accumulators in place of the epilogue. One that finishes a
//   tile for other clusters adds their partial sums before the epilogue, or, if it cuts tiles between slices of K,
//   at partials_at() in the main loop. A pingpong warpgroup arrives at kMathOrder + 1 - g only after that.
#pragma once

#include <cstdint>

#include "kernels/sm90_wgmma/accumulators.cuh"
#include "kernels/sm90_wgmma/epilogue.cuh"
#include "kernels/sm90_wgmma/int8_epilogue.cuh"
#include "kernels/sm90_wgmma/mainloop.cuh"
#include "kernels/sm90_wgmma/operands.cuh"
#include "kernels/sm90_wgmma/partial_sums.cuh"
#include "kernels/sm90_wgmma/shared_memory.cuh"
#include "kernels/sm90_wgmma/tile_scheduler.cuh"
#include "kernels/sm90_wgmma/traits.cuh"
#include "kernels/sm90_wgmma/turns.cuh"
#include "ptx/cluster.cuh"
#include "ptx/dependent_launch.cuh"
#include "ptx/tma.cuh"
#include "ptx/wgmma.cuh"

namespace hgemm::sm90_wgmma {

/// Whether this is one of two launches (core/grouped.h).
///
/// The second one reads the groups before it waits for the first, which lets it start only when everything before both
/// has finished. One of its blocks at least must wait before it ends, because the kernel after it waits for it alone.
template <class Traits>
__device__ __forceinline__ bool is_launch(const ParamsOf<Traits>& p, Launch launch) {
  if constexpr (Traits::kGrouped || Traits::kGroupsK) return p.launch == launch;
  return false;
}

/// `turn` counts the iterations of the persistent loop, and so the tiles that the block computes.
///
/// NOTE: the start of a block and both loops over its tiles are written here, not in functions of their own. As
/// functions they reach ptxas in another order, and it allocates other registers to Edged and stream-K kernels.
template <class Traits>
__global__ void __launch_bounds__(Traits::kThreads, 1) kernel(const __grid_constant__ ParamsOf<Traits> p) {
  extern __shared__ __align__(1024) unsigned char bytes[];
  const SharedMemory<Traits> smem(bytes);
  const int lane = threadIdx.x % 32;
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0);
  const TileScheduler<Traits> tiles(p, smem.share());

  if (!is_launch<Traits>(p, Launch::kFirst)) ptx::grid_launch_dependents();  // early PDL trigger
  if (threadIdx.x == kProducerThread) {
    ptx::tma_prefetch(&p.a[0]);
    ptx::tma_prefetch(&p.b[0]);
    if constexpr (trims_a<Traits>) ptx::tma_prefetch(&p.a[kRestBox]);
    if constexpr (trims_b<Traits>) ptx::tma_prefetch(&p.b[kRestBox]);
  }
  if (threadIdx.x == 0) smem.init_barriers();
  if (Traits::kCluster > 1) ptx::cluster_arrive_relaxed();
  // The kernel before this one may still write the operands: they cannot be read yet, but they can be prefetched to L2.
  // The groups of a grouped kernel are such an operand, so its first tile is not known before the wait.
  if constexpr (Traits::kGrouped || Traits::kGroupsK) {
    if (!is_launch<Traits>(p, Launch::kSecond)) ptx::grid_dependency_wait();
    if (is_launch<Traits>(p, Launch::kFirst)) ptx::grid_launch_dependents();
    tiles.start(bytes + Traits::STAGES * Traits::kStageBytes);
  } else if (threadIdx.x == kProducerThread) {
    tiles.start();
    const WorkOf<Traits> work = tiles.work(0);
    Operands<Traits>::each(p, work, Operands<Traits>::boxes(p, work), work.k_first,
                           [](auto operand, int, const auto&... at) { operand.prefetch(at...); });
  }
  // No thread has waited for the kernel before this one so far. The producer thread does so at its first load, and the
  // consumers before they read C or the bias or write D.
  StageSharing<Traits>::meet();

  tile::Ring<Traits::STAGES> ring;  // the position of this thread's role in the ring
  if (warp >= kConsumerWarps) {
    ptx::release_registers<24>();
    if (warp == kConsumerWarps && lane == 0) {  // not ptx::elect_one(): slower here (NOTES.md)
      for (uint32_t turn = 0; tiles.has(turn); ++turn) {
        WorkOf<Traits> work = tiles.work(turn);
        Boxes boxes = Operands<Traits>::boxes(p, work);
        for (int kt = work.k_first; kt < work.k_last; ++kt, ring.advance()) {
          if constexpr (Traits::kCutsSlices) {
            if (kt == partials_at(p.k_tiles, work.k_first)) {
              PartialSums<Traits>::load(p, work, smem, ring);
              work = tiles.work(turn);  // there are no registers to keep it meanwhile
              boxes = Operands<Traits>::boxes(p, work);
            }
          }
          load_step<Traits>(p, smem, ring, work, boxes, kt, turn == 0 && kt == work.k_first);
        }
        if (!Traits::kCutsSlices || work.k_last == partials_at(p.k_tiles, work.k_first)) {
          PartialSums<Traits>::load(p, work, smem, ring);
        }
      }
      StageSharing<Traits>::outlive(smem, ring);
    }
    PartialSums<Traits>::announce(p, tiles, warp, lane);
    if constexpr (Traits::kGroupsK) {
      if (warp > kConsumerWarps) tiles.fill(static_cast<int>(threadIdx.x) - kProducerThread - 32);
    }
  } else {
    ptx::claim_registers<240>();
    if (!Traits::kMerged && threadIdx.x == 0 && p.store_tma) ptx::tma_prefetch(&p.d);
    if (!is_launch<Traits>(p, Launch::kSecond) || tiles.has(0) || blockIdx.x == 0) ptx::grid_dependency_wait();
    const Turns<Traits> turns(tiles, warp / 4);
    const int row_in_tile = turns.row_in_tile();
    Epilogue<Traits> epilogue(p, smem.staging() + warp * Traits::kStagingWarpBytes);
    MainLoop<Traits> main_loop(p, smem, tiles, ring, row_in_tile, lane);
    Accumulators<Traits> acc;
    uint32_t turn = turns.first();
    for (; (Turns<Traits>::kRehearses && turn == kRehearsal) || tiles.has(turn); ++turn) {
      const bool rehearses = Turns<Traits>::kRehearses && turn == kRehearsal;
      if (!turns.begin(p, turn, ring, rehearses)) continue;
      WorkOf<Traits> work = tiles.work(rehearses ? 0 : turn);
      if (rehearses) turns.rehearse(work);
      if (Traits::kEdged && work.is_edge) break;
      if constexpr (!Traits::kIsInt8) epilogue.prefetch_c(work.m0 + row_in_tile + warp % 4 * 16, work);
      main_loop.run(acc, work, turn, epilogue);
      if (work.helpers == 0 && !rehearses) turns.hand_over(turn);
      main_loop.finish(acc, work, !rehearses);
      if (turn < tiles.partials()) {
        PartialSums<Traits>::leave(p, acc);
        continue;
      }
      if constexpr (!Traits::kCutsSlices) PartialSums<Traits>::add(acc, work, smem, ring, main_loop);
      if (work.helpers > 0) turns.hand_over(turn);
      const int row0 = work.m0 + row_in_tile + warp % 4 * 16;
      turns.before_last_epilogue(p, turn, rehearses, smem, warp, epilogue);
      epilogue.finish_tile(acc, smem, row0, work, p.defers && tiles.has(turn + 1));
    }
    if constexpr (Traits::kEdged) {  // with its own accumulators: if they were shared, ptxas would serialise wgmma
      if (tiles.has(turn)) {
        const Work work = tiles.work(turn);
        EdgeAccumulators edge;
        main_loop.run(edge, work, turn, epilogue);
        main_loop.finish(edge, work, true);
        epilogue.store(edge, work.m0 + 2 * row_in_tile + warp % 4 * 16, work, false);
      }
    }
    epilogue.drain();
  }
}

}  // namespace hgemm::sm90_wgmma
