// The tensor-core GEMM for Hopper (sm_90a): TMA feeds a ring of shared-memory stages, wgmma multiplies out of them.
//
// A block of three warpgroups stays on its SM and computes one work tile of C after another. One thread of the producer
// warpgroup runs ahead and keeps the ring full, across the ends of tiles; two consumer warpgroups multiply, with one
// group of wgmma in flight, and write their results. In pingpong form each consumer owns every other tile, so that the
// epilogue of one runs under the main loop of the other; in cooperative form they share the rows of a tile that would
// not fit one warpgroup's registers. In a cluster along M or N each block loads a part of the operand tiles that others
// need as well, and multicasts it: A to its row of blocks, B to its column; in a cluster along K the blocks split the
// sum of one tile and reduce it through distributed shared memory.
//
// Both operands may be K-major or MN-major: stages hold what lies in memory, in 128-byte swizzle, and wgmma transposes.
//
// Early PDL trigger: a launch may start while its predecessor in the stream drains (programmatic dependent launch).
// Blocks set up their barriers, find their first tile and have its first step brought to L2, then wait for everything
// before them. Partial sums and flags, too, may lie where that one still reads and writes its own.
//
// Barriers. Peers are the blocks of a cluster that one block loads for, itself included (Config::kPeers).
//
//   mbarrier        arrivals of a phase    who arrives                              who waits
//   full[STAGES]    kFullArrivals          the producer thread, with the stage's    the consumer warps of the tile,
//                   and all bytes          bytes; TMA of all peers completes them   before they read the stage
//   empty[STAGES]   kEmptyArrivals         each consumer warp of each peer that     the producer thread, before it
//                                          has read the stage                       loads; at its end, for all stages
//   summed          kSummedArrivals        thread 0 when it makes the barrier; the  all consumer threads, once
//   (split K)       and kSumBytes          other blocks' st.async completes bytes
//
//   named barrier               threads            who arrives                      who waits
//   kMathOrder + g (pingpong)   kConsumerThreads   warpgroup 1 - g, which has       warpgroup g, before its tile's
//                                                  waited for its last stage        main loop
//   kPartialsWritten (stream-K) kPartialsThreads   the tile's consumers             warp 9, which then sets the flag
//   kStagesRead + g (pingpong)  kWarpgroupThreads  warpgroup g, before its last epilogue uses the ring
//   kEpilogueTile + g (SwapAB)  kWarpgroupThreads  warpgroup g, around the staging of an epilogue tile
//   kSumsRead (split K)         kConsumerThreads   all consumers, before results take the place of the sums
//
//   The barrier of the cluster is used once: every thread arrives, relaxed, when the block's mbarriers are made. Who
//   loads or multiplies for peers waits at the start; with split K only the consumers do, before they send sums.
//
// Timeline of each role:
//
//   producer thread (warp 8, lane 0)      for each tile: for each step of K: wait empty, announce bytes on full, load;
//                                         stream-K: bring other clusters' partial sums through the same ring;
//                                         at the end, in clusters, wait until every stage has been given back
//   warp 9 (stream-K)                     wait kPartialsWritten, set the flag of this block's partial sums
//   warps 10, 11                          leave at once
//   consumer warpgroup, pingpong          for every other tile: wait kMathOrder | wait full, start wgmma, give back the
//                                         stage before: for each step | let the other one multiply | epilogue
//   consumer warpgroups, cooperative      for each tile: wait full, start wgmma, give back the stage before, store a
//                                         part of the tile before: for each step | round the results, store the first
#pragma once

#include <cstdint>

#include "kernels/sm90_wgmma/accumulators.cuh"
#include "kernels/sm90_wgmma/epilogue.cuh"
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

/// NOTE: what starts a block and both loops over turns stand here, not in functions of their own: as functions ptxas
/// gets them in another order, and gives edged and stream-K kernels other registers.
template <class Traits>
__global__ void __launch_bounds__(Traits::kThreads, 1) kernel(const __grid_constant__ ParamsOf<Traits> p) {
  extern __shared__ __align__(1024) unsigned char bytes[];
  const SharedMemory<Traits> smem(bytes);
  const int lane = threadIdx.x % 32;
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0);
  const TileScheduler<Traits> tiles(p, smem.share());

  ptx::grid_launch_dependents();  // early PDL trigger
  if (threadIdx.x == kProducerThread) {
    ptx::tma_prefetch(&p.a);
    ptx::tma_prefetch(&p.b);
  }
  if (threadIdx.x == 0) smem.init_barriers();
  if (Traits::kCluster > 1) ptx::cluster_arrive_relaxed();
  // What a kernel before may still write cannot be read yet, but brought to L2.
  if (threadIdx.x == kProducerThread) {
    tiles.start();
    const Work work = tiles.work(0);
    Operands<Traits>::each(p, work, work.k_first,
                           [](auto operand, int, const auto&... at) { operand.prefetch(at...); });
  }
  // Nobody has waited for that kernel yet: the first load does, and whoever reads C or the bias or writes D.
  StageSharing<Traits>::meet();

  tile::Ring<Traits::STAGES> ring;  // each side's own position in it
  if (warp >= kConsumerWarps) {
    ptx::release_registers<24>();
    if (warp == kConsumerWarps && lane == 0) {  // not ptx::elect_one(): slower here (NOTES.md)
      for (uint32_t turn = 0; tiles.has(turn); ++turn) {
        const Work work = tiles.work(turn);
        for (int kt = work.k_first; kt < work.k_last; ++kt, ring.advance()) {
          load_step<Traits>(p, smem, ring, work, kt, turn == 0 && kt == work.k_first);
        }
        PartialSums<Traits>::load(p, work, smem, ring);
      }
      StageSharing<Traits>::outlive(smem, ring);
    }
    PartialSums<Traits>::announce(p, tiles, warp, lane);
  } else {
    ptx::claim_registers<240>();
    if (threadIdx.x == 0 && p.store_tma) ptx::tma_prefetch(&p.d);
    ptx::grid_dependency_wait();
    const Turns<Traits> turns(tiles, warp / 4);
    const int row_in_tile = turns.row_in_tile();
    Epilogue<Traits> epilogue(p, smem.staging() + warp * Traits::kStagingWarpBytes);
    MainLoop<Traits> main_loop(p, smem, tiles, ring, row_in_tile, lane);
    Accumulators<Traits> acc;
    uint32_t turn = turns.first();
    for (; (Turns<Traits>::kRehearses && turn == kRehearsal) || tiles.has(turn); ++turn) {
      const bool rehearses = Turns<Traits>::kRehearses && turn == kRehearsal;
      if (!turns.begin(p, turn, ring, rehearses)) continue;
      Work work = tiles.work(rehearses ? 0 : turn);
      if (rehearses) turns.rehearse(work);
      if (Traits::kEdged && work.is_edge) break;
      main_loop.run(acc, work, turn, epilogue);
      if (work.helpers == 0 && !rehearses) turns.hand_over(turn);
      main_loop.finish(acc, !rehearses);
      if (turn < tiles.partials()) {
        PartialSums<Traits>::leave(p, acc);
        continue;
      }
      PartialSums<Traits>::add(acc, work, smem, ring, main_loop);
      if (work.helpers > 0) turns.hand_over(turn);
      const int row0 = work.m0 + row_in_tile + warp % 4 * 16;
      turns.before_last_epilogue(p, turn, rehearses, smem, warp, epilogue);
      epilogue.finish_tile(acc, smem, row0, work, p.defers && tiles.has(turn + 1));
    }
    if constexpr (Traits::kEdged) {  // accumulators of its own: shared ones would have ptxas serialise wgmma
      if (tiles.has(turn)) {
        const Work work = tiles.work(turn);
        EdgeAccumulators edge;
        main_loop.run(edge, work, turn, epilogue);
        main_loop.finish(edge, true);
        epilogue.store(edge, work.m0 + 2 * row_in_tile + warp % 4 * 16, work, false);
      }
    }
    epilogue.drain();
  }
}

}  // namespace hgemm::sm90_wgmma
