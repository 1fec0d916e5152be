// Products with a short side on Hopper (sm_90a), at the speed of reading the long operand once.
//
// W, the long operand, is on the M side of wgmma: D^T = W x^T, with all rows of x, at most 64, as the N of the
// instruction. A block owns up to 64 rows of W for each of its warpgroups, and a slice of K; what it owns is one tile
// after another where there is more than a tile for each SM. One thread keeps a ring of shared-memory stages full by
// TMA, across the ends of tiles; the warpgroups multiply, and each warp takes its sums to memory by itself. What counts
// is bytes in flight. Where two blocks fit an SM, the next kernel of a chain of dependent launches is resident,
// barriers and all, when this one ends, and has the first of W in L2 (in its ring, if nobody writes W). The slices of a
// tile form a cluster: its blocks finish some of the tile's warps each, and send them the sums of the others.
//
// Gated, W consists of two matrices, one above the other, and a tile has four rows of the one, the same four of the
// other, and so on: what belongs together is in the sums of one warp.
//
// Barriers. `finishes` is the number of warps whose sums a block finishes (finished_warps).
//
//   mbarrier             arrivals of a phase    who arrives                              who waits
//   full[stages]         kFullArrivals          the loading thread, with the bytes of    the warps that multiply,
//   before
//                        and stage_bytes        W and x; TMA completes them              they read the stage
//   empty[stages]        kEmptyArrivals         lane 0 of each warp that has read the    the loading thread, before it
//                                               stage                                    loads the stage again
//   summed[finishes]     kSummedArrivals        lane 0 of the warp that finishes, with   that warp, once
//   (slices of K)        and the others' bytes  the bytes that it expects; the other
//                                               blocks' st.async completes them
//
//   __syncthreads comes once, when the mbarriers are made. Then, with slices, every thread arrives at the barrier of
//   the cluster, relaxed; the warps that multiply wait there before they send sums or add them.
//
// Timeline of each role:
//
//   loading thread (warp kWarps)      make barriers | first stages of W to L2 | wait for the kernels before | fill the
//                                     ring, W and x stage by stage | for each further step: wait empty, load |
//                                     Release::kWithLastLoads: let the next kernel start
//   warps that multiply               wait for the kernels before | for each tile: wait full, start wgmma, give a stage
//                                     back: for each step | with slices: send the sums and leave, or add the others' |
//                                     activate, round and store
#pragma once

#include <cuda.h>

#include "core/problem.h"
#include "kernels/sm90_skinny/config.h"
#include "kernels/sm90_skinny/epilogue.cuh"
#include "kernels/sm90_skinny/traits.cuh"
#include "ptx/cluster.cuh"
#include "ptx/dependent_launch.cuh"
#include "ptx/elect.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/smem_addr.cuh"
#include "ptx/tma.cuh"
#include "ptx/wgmma.cuh"
#include "tile/epilogue.cuh"

namespace hgemm::sm90_skinny {

/// Where a block is: on a tile, at a step along K.
struct Cursor {
  int row0, step;
};

template <class Traits>
__global__ void __launch_bounds__(Traits::kThreads) kernel(const __grid_constant__ Params p) {
  using T = typename Traits::T;
  using Stage = Stage<Traits>;
  constexpr int COLS = Traits::COLS, PANELS = Traits::PANELS, kWarps = Traits::kWarps;
  extern __shared__ __align__(1024) unsigned char smem[];
  const uint32_t ring = ptx::smem_addr(smem);
  const uint32_t full = ring + Traits::kRingBytes, empty = full + 8 * Traits::kMaxStages;
  const uint32_t summed = empty + 8 * Traits::kMaxStages;
  const int stage_bytes = Stage::bytes(p.tile_rows), panel_w = Stage::panel_w(p.tile_rows);
  // An elected lane loads sooner (ptx/elect.cuh). Where two blocks fit an SM, those of the next kernel then crowd on
  // some SMs (NOTES.md).
  const int warp =
      Traits::kFillsSm ? __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0) : static_cast<int>(threadIdx.x / 32);
  const int lane = threadIdx.x % 32;
  const bool is_loader = threadIdx.x == kWarps * 32;
  const auto loads = [=] { return Traits::kFillsSm ? warp == kWarps && ptx::elect_one() : is_loader; };

  const int split = blockIdx.y;
  const int first = p.k_steps * split / p.splits, last = p.k_steps * (split + 1) / p.splits;
  const int outer = blockIdx.z / p.batch_inner, inner = blockIdx.z - outer * p.batch_inner;
  const int row_stride = gridDim.x * p.tile_rows;  // from one tile of the block to its next
  const Cursor begin{static_cast<int>(blockIdx.x) * p.tile_rows, first};

  if (loads()) {
    ptx::tma_prefetch(&p.w);
    ptx::tma_prefetch(&p.x);
    for (int s = 0; s < p.stages; ++s) {
      ptx::mbarrier_init(full + 8 * s, Traits::kFullArrivals);
      ptx::mbarrier_init(empty + 8 * s, Traits::kEmptyArrivals);
    }
    for (int i = 0; i < kWarps; ++i) ptx::mbarrier_init(summed + 8 * i, Traits::kSummedArrivals);
    ptx::fence_mbarrier_init();
  }

  const auto advance = [&](Cursor& at) {
    if (++at.step == last) at = {at.row0 + row_stride, first};
  };
  const uint64_t read_once = ptx::evict_first_policy();
  const auto each_box_of_w = [&](const Cursor& at, auto visit) {
#pragma unroll
    for (int j = 0; j < PANELS; ++j) {
      const int k = (at.step * PANELS + j) * 64, in = inner & p.w_batch[1], out = outer & p.w_batch[0];
      if constexpr (Stage::kKMajor) {
        visit(j * panel_w,
              Traits::kGated ? ptx::TmaCoord{k, 0, 0, at.row0 / (2 * kGateRows)} : ptx::TmaCoord{k, at.row0, in, out});
      } else {
#pragma unroll
        for (int g = 0; g < Traits::kGroups; ++g) {
          visit(j * panel_w + g * Stage::kGroup, ptx::TmaCoord{at.row0 + 64 * g, k, in, out});
        }
      }
    }
  };
  const auto load_w = [&](int stage, const Cursor& at) {
    const uint32_t bar = full + 8 * stage, to = ring + stage * stage_bytes + PANELS * Stage::kPanelX;
    ptx::mbarrier_arrive_expect_tx(bar, stage_bytes);
    each_box_of_w(at,
                  [&](int offset, ptx::TmaCoord box) { ptx::tma_load_hinted(to + offset, &p.w, bar, box, read_once); });
  };
  const auto load_x = [&](int stage, const Cursor& at) {
#pragma unroll
    for (int j = 0; j < PANELS; ++j) {
      const int k = (at.step * PANELS + j) * 64, in = inner & p.x_batch[1], out = outer & p.x_batch[0];
      ptx::tma_load(ring + stage * stage_bytes + j * Stage::kPanelX, &p.x, full + 8 * stage,
                    Stage::kKMajorX ? ptx::TmaCoord{k, 0, in, out} : ptx::TmaCoord{0, k >> p.x_shift, in, out});
    }
  };

  // Tiles beyond the last one of W are nobody's.
  const int my_tiles = begin.row0 < p.rows ? (p.rows - begin.row0 + row_stride - 1) / row_stride : 0;
  const int steps = my_tiles * (last - first), ahead = min(steps, p.stages);
  if (loads()) {
    Cursor at = begin;
    for (int s = min(steps, p.prefetch); s > 0; --s, advance(at)) {
      each_box_of_w(at, [&](int, ptx::TmaCoord box) { ptx::tma_prefetch_box(&p.w, box); });
    }
  }
  __syncthreads();
  if (p.splits > 1) ptx::cluster_arrive_relaxed();  // this block's barriers are there
  ptx::grid_dependency_wait();
  if (p.release == Release::kAtOnce) ptx::grid_launch_dependents();

  if (warp == kWarps) {
    if (loads()) {
      Cursor next = begin;
      // x not behind all of W, but stage by stage: the first one can be used, and loaded again, as soon as it is there.
      for (int s = 0; s < ahead; ++s, advance(next)) {
        load_w(s, next);
        load_x(s, next);
      }
      const int last_loads = max(steps - p.stages, ahead);
      int stage = 0;
      uint32_t parity = 0;
      for (int i = ahead; i < steps; ++i, advance(next)) {
        if (i == last_loads && p.release == Release::kWithLastLoads) ptx::grid_launch_dependents();
        ptx::mbarrier_wait(empty + 8 * stage, parity);
        load_w(stage, next);
        load_x(stage, next);
        if (++stage == p.stages) stage = 0, parity ^= 1;
      }
      if (last_loads == steps && p.release == Release::kWithLastLoads) ptx::grid_launch_dependents();
    }
    __syncwarp();
  } else {
    const tile::BatchOffset offset = tile::batch_offset(p.epilogue, blockIdx.z);
    float acc[COLS / 2];
    int stage = 0, before = 0;
    uint32_t parity = 0;
    for (int row0 = begin.row0; row0 < p.rows; row0 += row_stride) {
      for (int step = first; step < last; ++step) {
        ptx::mbarrier_wait(full + 8 * stage, parity);
        const uint32_t x = ring + stage * stage_bytes, w = x + PANELS * Stage::kPanelX + warp / 4 * Stage::kGroup;
        ptx::wgmma_fence();
#pragma unroll
        for (int j = 0; j < PANELS; ++j) {
          const uint64_t panel_of_w = ptx::wgmma_descriptor(w + j * panel_w, 64 * Stage::kLine, 8 * Stage::kLine);
          const uint64_t panel_of_x = ptx::wgmma_descriptor<Stage::kLineX>(
              x + j * Stage::kPanelX, Stage::kKMajorX ? 0 : 8 * Stage::kLineX, 8 * Stage::kLineX);
#pragma unroll
          for (int s = 0; s < 4; ++s) {
            ptx::Wgmma<T>::template m64k16<COLS, Stage::kKMajor ? 0 : 1, Stage::kKMajorX ? 0 : 1>(
                acc, ptx::wgmma_advance(panel_of_w, s * Stage::kStepBytes),
                ptx::wgmma_advance(panel_of_x, s * Stage::kStepBytesX), step > first || j > 0 || s > 0);
          }
        }
        ptx::wgmma_commit();
        constexpr int kInFlight = Traits::kInFlight;
        ptx::wgmma_wait<kInFlight>();
        if (lane == 0 && step - kInFlight >= first) ptx::mbarrier_arrive(empty + 8 * (kInFlight ? before : stage));
        before = stage;
        if (++stage == p.stages) stage = 0, parity ^= 1;
      }
      if constexpr (Traits::kInFlight == 1) {
        ptx::wgmma_wait<0>();
        if (lane == 0) ptx::mbarrier_arrive(empty + 8 * before);
      }
      ptx::wgmma_pin(acc);
      if (p.release == Release::kWithLastSums && row0 + row_stride >= p.rows) ptx::grid_launch_dependents();
      const int rows = min(p.tile_rows, p.rows - row0) - warp * 16;
      const int turn = warp % p.finishes;
      const int patch_at = Traits::kFinishAt + turn * (Traits::kPatchBytes + (p.splits - 1) * Traits::kSumBytes);
      float* const patch = reinterpret_cast<float*>(smem + patch_at);
      if (p.splits > 1) {
        ptx::cluster_wait();
        if (rows <= 0) break;
        if (!add_slices<Traits>(p, acc, warp / p.finishes, patch + Traits::kPatchBytes / 4, summed + 8 * turn)) break;
      }
      finish_warp<Traits>(p, acc, patch, row0 + warp * 16, rows, offset);
    }
  }
}

}  // namespace hgemm::sm90_skinny
