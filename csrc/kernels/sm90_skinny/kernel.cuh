// GEMMs with a short side on Hopper (sm_90a), at the speed of reading the long operand once.
//
// W, the long operand, is on the M side of wgmma: D^T = W x^T. All rows of x, at most 64, are the N of the instruction.
// Only a Tiled kernel (config.h) takes more, in tiles along the third dimension of the grid.
// A block owns up to 64 rows of W for each of its warpgroups, and a slice of K. If there are more tiles than SMs, the
// block is persistent and computes one tile after another. One thread keeps a ring of shared-memory stages full by TMA,
// across the ends of tiles. The warpgroups multiply, and each warp stores its sums independently.
//
// Speed depends on the bytes in flight. If two blocks fit an SM, a block of the next kernel in a chain of dependent
// launches is resident when this kernel ends. It has already made its barriers and prefetched the first stages of W to
// L2.
//
// With several slices of K (split-K) the blocks of a tile form a cluster. The sums of each of the tile's warps are
// finished by one of the blocks, to which the other blocks send theirs.
//
// Gated: W consists of two matrices, one above the other. A tile has four rows of the first matrix, the same four rows
// of the second, and so on, so that the two values of a gate are among the sums of one warp.
//
// Barriers. `stages` is Params::stages. `finishes` is the number of warps whose sums a block finishes (finished_warps).
//
//   mbarrier             completes a phase      who arrives                            who waits
//   full[stages]         kFullArrivals and      the loading thread, which announces    the multiplying warps, before
//                        stage_bytes            the bytes of W and x; their TMA        they read the stage
//                                               loads complete the bytes
//   empty[stages]        kEmptyArrivals         lane 0 of each multiplying warp,       the loading thread, before it
//                                               once the warp has read the stage       loads the stage again
//   summed[finishes]     kSummedArrivals and    lane 0 of the warp that finishes,      all lanes of that warp, once
//   (slices of K)        the announced bytes    which announces the bytes to come;
//                                               st.async of the other blocks
//                                               completes the bytes
//
//   All threads of the block meet once at __syncthreads, when the mbarriers are made. With slices every thread then
//   arrives at the barrier of the cluster, relaxed, and the multiplying warps wait there before they send or add sums.
//
// Timeline of each role. "Trigger" is griddepcontrol.launch_dependents, which lets the next kernel start.
//
//   loading thread (of warp kWarps)
//     make the mbarriers; prefetch the first stages of W to L2 (Schedule::prefetch); __syncthreads
//     wait for the kernels before this one; Release::kAtOnce: trigger
//     for each stage of the ring: announce the bytes on full; start the TMA loads of W and x
//     for each further k-tile: wait empty; announce the bytes on full; start the TMA loads of W and x
//     Release::kWithLastLoads: trigger when the k-tiles that are left to load fit the ring
//   multiplying warps
//     __syncthreads; wait for the kernels before this one; Release::kAtOnce: trigger
//     for each tile:
//       for each k-tile: wait full; start wgmma; wait until at most kInFlight groups of wgmma are in flight; release
//                        this stage (kInFlight = 0) or the stage before (kInFlight = 1)
//       kInFlight = 1: wait for the last group; release its stage
//       Release::kWithLastSums, after the block's last tile: trigger
//       with slices: wait for the cluster's barrier; send the sums and exit, or wait summed and add the others' sums
//       activate, round and store
#pragma once

#include <cuda.h>

#include "core/problem.h"
#include "kernels/sm90_skinny/config.h"
#include "kernels/sm90_skinny/epilogue.cuh"
#include "kernels/sm90_skinny/traits.cuh"
#include "kernels/sm90_skinny/transpose.cuh"
#include "ptx/cluster.cuh"
#include "ptx/dependent_launch.cuh"
#include "ptx/elect.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/smem_addr.cuh"
#include "ptx/tma.cuh"
#include "ptx/wgmma.cuh"
#include "tile/epilogue.cuh"

namespace hgemm::sm90_skinny {

/// A position of the block: the tile, by its first row of W, and the k-tile.
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
  // An elected lane starts its loads sooner (ptx/elect.cuh). But where two blocks fit an SM, the blocks of the next
  // kernel would then crowd on some SMs (NOTES.md), so only kernels that fill an SM elect one.
  const int warp =
      Traits::kFillsSm ? __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0) : static_cast<int>(threadIdx.x / 32);
  const int lane = threadIdx.x % 32;
  const bool is_loader = threadIdx.x == kWarps * 32;
  const auto loads = [=] { return Traits::kFillsSm ? warp == kWarps && ptx::elect_one() : is_loader; };

  const int split = blockIdx.y;
  const int first = p.k_steps * split / p.splits, last = p.k_steps * (split + 1) / p.splits;
  const Place place = place_of<Traits>(p);
  const int outer = place.batch / p.batch_inner, inner = place.batch - outer * p.batch_inner;
  const int row_stride = gridDim.x * p.tile_rows;  // from one tile of the block to the next
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
      if constexpr (Traits::kTransposes) {
#pragma unroll
        for (int g = 0; g < Traits::kGroups; ++g) {
          visit(j * panel_w + g * Stage::kGroup, ptx::TmaCoord{at.row0 / 2 + 64 * g, 2 * k, in, out});
        }
      } else if constexpr (Stage::kKMajor) {
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
                    Stage::kKMajorX ? ptx::TmaCoord{k, place.first, in, out}
                                    : ptx::TmaCoord{place.first, k >> p.x_shift, in, out});
    }
  };

  // A block may have no tile: its first one may lie beyond the end of W.
  const int my_tiles = begin.row0 < p.rows ? (p.rows - begin.row0 + row_stride - 1) / row_stride : 0;
  const int steps = my_tiles * (last - first), ahead = min(steps, p.stages);
  if (loads()) {
    Cursor at = begin;
    for (int s = min(steps, p.prefetch); s > 0; --s, advance(at)) {
      each_box_of_w(at, [&](int, ptx::TmaCoord box) { ptx::tma_prefetch_box(&p.w, box); });
    }
  }
  __syncthreads();
  if (p.splits > 1) ptx::cluster_arrive_relaxed();  // this block's mbarriers are made
  ptx::grid_dependency_wait();
  if (p.release == Release::kAtOnce) ptx::grid_launch_dependents();

  if (warp == kWarps) {
    if (loads()) {
      Cursor next = begin;
      // Each stage loads its part of x right behind its part of W, not behind all of W. So the first stage can be used,
      // and loaded again, as soon as it has arrived.
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
    const tile::BatchOffset offset = tile::batch_offset(p.epilogue, place.batch);
    const int group = warp / 4 / Traits::kColGroups, col_group = warp / 4 % Traits::kColGroups;
    const int first_row = (Traits::kColGroups == 1 ? warp : group * 4 + warp % 4) * Traits::kWarpRows;
    typename Traits::Sum acc[Traits::PARTS][Traits::kWarpCols / 2];
    int stage = 0, before = 0;
    uint32_t parity = 0;
    for (int row0 = begin.row0; row0 < p.rows; row0 += row_stride) {
      for (int step = first; step < last; ++step) {
        ptx::mbarrier_wait(full + 8 * stage, parity);
        const uint32_t x = ring + stage * stage_bytes, w = x + PANELS * Stage::kPanelX + group * Stage::kGroup;
        if constexpr (Traits::kTransposes) {
          multiply_transposed<Traits>(acc, w, x + col_group * Traits::kWarpCols * Stage::kLine, step > first);
        } else {
          ptx::wgmma_fence();
#pragma unroll
          for (int j = 0; j < PANELS; ++j) {
            const uint64_t panel_of_w = ptx::wgmma_descriptor<Stage::kLineW>(
                w + j * panel_w, Traits::kNarrow ? 0 : 64 * Stage::kLine, 8 * Stage::kLineW);
            const uint64_t panel_of_x = ptx::wgmma_descriptor<Stage::kLineX>(
                x + j * Stage::kPanelX, Stage::kKMajorX ? 0 : 8 * Stage::kLineX, 8 * Stage::kLineX);
#pragma unroll
            for (int s = 0; s < 4; ++s) {
              ptx::Wgmma<T>::template m64k16<COLS, Stage::kKMajor ? 0 : 1, Stage::kKMajorX ? 0 : 1>(
                  acc[0], ptx::wgmma_advance(panel_of_w, s * Stage::kStepBytes),
                  ptx::wgmma_advance(panel_of_x, s * Stage::kStepBytesX), step > first || j > 0 || s > 0);
            }
          }
          ptx::wgmma_commit();
        }
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
#pragma unroll
      for (auto& part : acc) ptx::wgmma_pin(part);
      if (p.release == Release::kWithLastSums && row0 + row_stride >= p.rows) ptx::grid_launch_dependents();
      const int rows = min(p.tile_rows, p.rows - row0) - first_row;
      const int turn = warp % p.finishes;
      const int patch_at = Traits::kFinishAt + turn * (Traits::kPatchBytes + (p.splits - 1) * Traits::kSumBytes);
      auto* const patch = reinterpret_cast<typename Traits::Sum*>(smem + patch_at);
      if (p.splits > 1) {
        ptx::cluster_wait();
        if (rows <= 0) break;
        if (!add_slices<Traits>(p, acc, warp / p.finishes, patch + Traits::kPatchBytes / 4, summed + 8 * turn)) break;
      }
      finish_warp<Traits>(p, acc, patch, row0 + first_row, rows, offset);
    }
  }
}

}  // namespace hgemm::sm90_skinny
