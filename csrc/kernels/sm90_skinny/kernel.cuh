// Products with a short side on Hopper (sm_90a), at the speed of reading the long operand once.
//
// W, the long operand, stands on the M side of wgmma: D^T = W x^T, with all rows of x, at most 64, as the N of the
// instruction. A block owns up to 64 rows of W for each of its warpgroups, and a slice of K; what it owns is one tile
// after another where there is more than a tile for each SM. One thread keeps a ring of shared-memory stages full by
// TMA, across the ends of tiles; the warpgroups multiply, and each warp takes its sums to memory by itself. What counts
// is bytes in flight. Where two blocks fit an SM, the next kernel of a chain of dependent launches stands ready,
// barriers and all, when this one ends, and has the first of W in L2 (in its ring, if nobody writes W). The slices of a
// tile form a cluster: its blocks finish some of the tile's warps each, and send them the sums of the others.
//
// Gated, W is two halves, and a tile has four rows of the one, the same four of the other, and so on: what belongs
// together is in the sums of one warp.
#pragma once

#include <cuda.h>

#include <type_traits>

#include "core/convert.cuh"
#include "core/problem.h"
#include "kernels/sm90_skinny/config.h"
#include "ptx/cluster.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/dependent_launch.cuh"
#include "ptx/elect.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/tma.cuh"
#include "ptx/wgmma.cuh"
#include "tile/epilogue.cuh"
#include "tile/fast_activation.cuh"

namespace hgemm::sm90_skinny {

/// What the kernel is compiled for.
template <class Config_, class T_, Major kMajor_, bool kGated_ = false>
struct Traits : Config_ {
  using T = T_;
  static constexpr Major kMajor = kMajor_;  // of W
  // D = act(first half of W x^T) * second half; W K-major, D as it lies, no batch.
  static constexpr bool kGated = kGated_;
};

struct Params {
  CUtensorMap w, x;
  int32_t w_batch[2], x_batch[2];  // outer, inner: 0 where a batch index does not move the operand, else ~0
  uint32_t batch_inner;
  int rows, cols;  // of W and of x
  int tile_rows;   // of W in a tile, a multiple of 8
  int k_steps, splits, stages;
  int finishes;     // finished_warps
  int prefetch;     // Schedule::prefetch
  Release release;  // Schedule::release
  bool swapped;     // D's rows are W's
  Activation gate;  // gated: the epilogue has none
  tile::EpilogueParams epilogue;
};

template <Activation kAct>
using Act = std::integral_constant<Activation, kAct>;

constexpr int kGateRows = 4;  // of a gated W's halves, in turn

/// A stage: x's panels of (COLS, 64 k), then W's, of (tile rows, 64 k) or, MN-major, one (64 k, 64 rows) for each
/// warpgroup, all in 128-byte swizzle. A panel of fewer rows takes less space; wgmma still reads 64, and what it makes
/// of the rest is not used.
template <class Traits>
struct Stage {
  static constexpr bool kKMajor = Traits::kMajor == Major::kK;
  static constexpr int kLine = 128, kGroup = 64 * kLine;
  static constexpr int kPanelX = Traits::COLS * kLine;
  static constexpr int kStepBytes = kKMajor ? 32 : 16 * kLine;  // of a panel of W, to the next 16 k

  static __host__ __device__ constexpr int panel_w(int tile_rows) {
    return kKMajor ? tile_rows * kLine : Traits::kGroups * kGroup;
  }
  static __host__ __device__ constexpr int bytes(int tile_rows) {
    return Traits::PANELS * (kPanelX + panel_w(tile_rows));
  }
  /// Stages that fit the ring when the last panel is read as if it were whole.
  static __host__ __device__ constexpr int count(int tile_rows) {
    const int fit = (Traits::kRingBytes - Traits::kGroups * kGroup + panel_w(tile_rows)) / bytes(tile_rows);
    return fit < Traits::kMaxStages ? fit : Traits::kMaxStages;
  }
};

/// Gates the sums of eight neighbouring rows of W, from `row` on, four of either half, for row `col` of x.
template <class T>
__device__ __forceinline__ void finish_gated(const Params& p, const float (&v)[8], int col, int row) {
  float gate[kGateRows];
  const auto activate = [&](auto act) {
#pragma unroll
    for (int i = 0; i < kGateRows; ++i) gate[i] = tile::fast_activate<decltype(act)::value>(v[i]);
  };
  switch (p.gate) {
    case Activation::kRelu: activate(Act<Activation::kRelu>()); break;
    case Activation::kGelu: activate(Act<Activation::kGelu>()); break;
    case Activation::kGeluTanh: activate(Act<Activation::kGeluTanh>()); break;
    case Activation::kSilu: activate(Act<Activation::kSilu>()); break;
    default:
#pragma unroll
      for (int i = 0; i < kGateRows; ++i) gate[i] = v[i];
  }
  struct alignas(kGateRows * sizeof(T)) Four {
    T x[kGateRows];
  } four;
#pragma unroll
  for (int i = 0; i < kGateRows; ++i) four.x[i] = from_float<T>(gate[i] * v[kGateRows + i]);
  T* const d = static_cast<T*>(p.epilogue.d) + col * p.epilogue.ldd + row / 2;
  if (p.epilogue.wide_d) {
    *reinterpret_cast<Four*>(d) = four;
  } else {
#pragma unroll
    for (int i = 0; i < kGateRows; ++i) d[i] = four.x[i];
  }
}

/// Takes a warp's sums, of 16 rows of W from `row0` on, of which `rows` exist, to memory: eight neighbours in D at a
/// time, which run along W's rows or, swapped, along x's. They change lanes in `patch`, kPatchCols lines of
/// kPatchStride.
template <class Traits>
__device__ __forceinline__ void finish_warp(const Params& p, const float (&acc)[Traits::COLS / 2], float* patch,
                                            int row0, int rows, tile::BatchOffset offset) {
  constexpr int kCols = Traits::kPatchCols, kStride = Traits::kPatchStride;
  const int lane = threadIdx.x % 32;
  const bool swapped = !Traits::kGated && p.swapped;
  const int row = swapped ? lane % 16 : lane % 2 * 8;
  const int col = swapped ? lane / 16 * 8 : lane / 2;
#pragma unroll
  for (int c0 = 0; c0 < Traits::COLS; c0 += kCols) {
    if (c0 >= p.cols) break;
    float* const mine = patch + lane % 4 * 2 * kStride + lane / 4;
#pragma unroll
    for (int j = 0; j < kCols / 8; ++j) {
      const float* const from = acc + c0 / 2 + 4 * j;
      float* const at = mine + 8 * j * kStride;
      at[0] = from[0];
      at[kStride] = from[1];
      at[8] = from[2];
      at[kStride + 8] = from[3];
    }
    __syncwarp();
    if (row < rows && col < kCols && c0 + col < p.cols) {
      const float* const from = patch + col * kStride + row;
      float v[8];
#pragma unroll
      for (int i = 0; i < 8; ++i) v[i] = from[swapped ? i * kStride : i];
      if constexpr (Traits::kGated) {
        finish_gated<typename Traits::T>(p, v, c0 + col, row0 + row);
      } else if (swapped) {
        tile::finish<typename Traits::T>(p.epilogue, offset, row0 + row, c0 + col, {0, min(p.cols - c0 - col, 8)}, true,
                                         v);
      } else {
        tile::finish<typename Traits::T>(p.epilogue, offset, c0 + col, row0 + row, {0, min(rows - row, 8)}, true, v);
      }
    }
    __syncwarp();
  }
}

/// Sends a warp's sums to block `owner` of the cluster; there, adds up what the others send, the slices in order behind
/// its own. False where it has sent. `sums`: shared memory for (splits - 1, COLS / 8, 32 lanes, 4) floats, whose bytes
/// complete on `bar`.
template <class Traits>
__device__ __forceinline__ bool add_slices(const Params& p, float (&acc)[Traits::COLS / 2], int owner,
                                           const float* sums, uint32_t bar) {
  const int slice = blockIdx.y, lane = threadIdx.x % 32;
  const int groups = (p.cols + 7) / 8;  // of eight rows of x; what is beyond x is not sent
  if (slice != owner) {
    const int mine = slice - (slice > owner);
    const uint32_t to = ptx::cluster_map(ptx::smem_addr(sums) + mine * Traits::kSumBytes + lane * 16, owner);
    const uint32_t done = ptx::cluster_map(bar, owner);
#pragma unroll
    for (int j = 0; j < Traits::COLS / 8; ++j) {
      const float* const v = acc + 4 * j;
      if (j < groups) ptx::cluster_store_async_16(to + j * 512, v[0], v[1], v[2], v[3], done);
    }
    return false;
  }
  if (lane == 0) ptx::mbarrier_arrive_expect_tx(bar, (p.splits - 1) * groups * 512);
  ptx::mbarrier_wait(bar, 0);
  for (int r = 0; r < p.splits - 1; ++r) {
#pragma unroll
    for (int j = 0; j < Traits::COLS / 8; ++j) {
      if (j < groups) {
        const float4 v = reinterpret_cast<const float4*>(sums)[(r * (Traits::COLS / 8) + j) * 32 + lane];
        acc[4 * j] += v.x, acc[4 * j + 1] += v.y, acc[4 * j + 2] += v.z, acc[4 * j + 3] += v.w;
      }
    }
  }
  return true;
}

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
      ptx::mbarrier_init(full + 8 * s, 1);
      ptx::mbarrier_init(empty + 8 * s, kWarps);
    }
    for (int i = 0; i < kWarps; ++i) ptx::mbarrier_init(summed + 8 * i, 1);
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
      ptx::tma_load(ring + stage * stage_bytes + j * Stage::kPanelX, &p.x, full + 8 * stage,
                    {(at.step * PANELS + j) * 64, 0, inner & p.x_batch[1], outer & p.x_batch[0]});
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
          const uint64_t panel_of_x = ptx::wgmma_descriptor(x + j * Stage::kPanelX, 0, 8 * Stage::kLine);
#pragma unroll
          for (int s = 0; s < 4; ++s) {
            ptx::Wgmma<T>::template m64k16<COLS, Stage::kKMajor ? 0 : 1, 0>(
                acc, ptx::wgmma_advance(panel_of_w, s * Stage::kStepBytes), ptx::wgmma_advance(panel_of_x, s * 32),
                step > first || j > 0 || s > 0);
          }
        }
        ptx::wgmma_commit();
        // Where a stage is soon multiplied, giving it back at once is worth more than busy tensor cores between stages.
        constexpr int kInFlight = COLS < 64 ? 0 : 1;
        ptx::wgmma_wait<kInFlight>();
        if (lane == 0 && step - kInFlight >= first) ptx::mbarrier_arrive(empty + 8 * (kInFlight ? before : stage));
        before = stage;
        if (++stage == p.stages) stage = 0, parity ^= 1;
      }
      if constexpr (COLS >= 64) {
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
