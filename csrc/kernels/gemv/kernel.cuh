// Products of a row or a few, x, with a long operand W, on CUDA cores: any alignment, any architecture.
//
// A thread loads 16-byte chunks of W, four to a unit and DEPTH units in flight, and multiplies them with x, which the
// block has in shared memory, in fp32. Along a K-major W the lanes of a warp share rows, of which it takes four at a
// time, and shuffles add their sums; a warp goes from rows to rows without a pause in its loads. In an MN-major W a
// thread owns eight columns and walks along k. Warps that share rows or columns meet in shared memory.
//
// Slices of K may go to different blocks. They leave sums in the workspace, and the last one to arrive, as a counter
// tells it, adds them all up in an order that depends on nothing: the same bits every time.
//
// Unaligned, chunks are still 16 aligned bytes, and what shifts is the other operand. Along a K-major W the rows of a
// tile lie eight apart, so that they share their offset from the grid, and x lies as much later in shared memory. In an
// MN-major W each warp takes the k of one residue modulo 8, and its columns begin as many earlier.
#pragma once

#include "core/convert.cuh"
#include "core/problem.h"
#include "kernels/gemv/chunks.cuh"
#include "kernels/gemv/config.h"
#include "kernels/gemv/traits.cuh"
#include "kernels/gemv/walk.cuh"
#include "ptx/dependent_launch.cuh"
#include "ptx/global.cuh"
#include "tile/chunk.cuh"
#include "tile/counters.cuh"
#include "tile/epilogue.cuh"

namespace hgemm::gemv {

// Zero whenever no kernel runs that uses them: the last of those that count at one sets it back. Which are whose:
// tile/counters.cu. Each element type has its own.
static __device__ unsigned counters[tile::kSlots * tile::kMaxCounted];

/// Puts slice_k elements of every row of x, from k = `first` on, into shared memory, zeros where it has none. For an
/// unaligned MN-major W, whose warps take every eighth k, those of one warp lie together.
template <class Traits>
__device__ __forceinline__ void stage_x(const Params& p, const uint16_t* x, int first, uint16_t* xs) {
  constexpr int COLS = Traits::COLS;
  if constexpr (!Traits::kNarrow) {
    for (int i = threadIdx.x * 8; i < p.slice_k; i += 2 * 8 * kThreads) {
      uint4 v[2][COLS];
#pragma unroll
      for (int h = 0; h < 2; ++h) {
#pragma unroll
        for (int c = 0; c < COLS; ++c) {
          const int k = first + i + h * 8 * kThreads;
          v[h][c] = make_uint4(0, 0, 0, 0);
          if (c < p.cols && k < p.k) v[h][c] = ptx::ld_16(x + c * p.x_row + k);
        }
      }
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int to = i + h * 8 * kThreads;
        if (to >= p.slice_k) break;
#pragma unroll
        for (int c = 0; c < COLS; ++c) *reinterpret_cast<uint4*>(xs + c * p.slice_k + to) = v[h][c];
      }
    }
  } else {
    constexpr int kBatch = 4, kStep = Traits::kKMajor ? kThreads : kThreads / 8;
    const int tid = threadIdx.x;
#pragma unroll 1
    for (int c = 0; c < COLS; ++c) {
      uint16_t* to = xs + c * p.slice_k + (Traits::kKMajor ? tid : tid % 8 * (p.slice_k / 8) + tid / 8);
      int left = p.slice_k - tid;
#pragma unroll 1
      for (int k = first + tid; left > 0; k += kBatch * kThreads) {
        uint16_t v[kBatch];
#pragma unroll
        for (int h = 0; h < kBatch; ++h) {
          const int at = k + h * kThreads;
          v[h] = 0;
          if (c < p.cols && 0 <= at && at < p.k) v[h] = ptx::ld_2(x + c * p.x_row + at * p.x_k);
        }
#pragma unroll
        for (int h = 0; h < kBatch; ++h) {
          if (h * kThreads < left) to[h * kStep] = v[h];
        }
        to += kBatch * kStep;
        left -= kBatch * kThreads;
      }
    }
  }
}

template <class Traits>
__global__ void __launch_bounds__(kThreads, Traits::kBlocks) kernel(const __grid_constant__ Params p) {
  using T = typename Traits::T;
  using Walk = Walk<Traits>;
  constexpr int COLS = Traits::COLS, DEPTH = Traits::DEPTH;
  extern __shared__ __align__(16) float sums[];  // Traits::kSumFloats, then x: (COLS, slice_k)
  auto* const xs = reinterpret_cast<uint16_t*>(sums + Traits::kSumFloats);
  __shared__ int shifts[kWarps];

  const int64_t outer = blockIdx.z / p.batch_inner, inner = blockIdx.z - outer * p.batch_inner;
  const auto* w = static_cast<const uint16_t*>(p.w) + outer * p.w_batch[0] + inner * p.w_batch[1];
  const auto* x = static_cast<const uint16_t*>(p.x) + outer * p.x_batch[0] + inner * p.x_batch[1];
  const int tile = blockIdx.x;
  const int row0 = Traits::kRowStep == 8 ? tile / 8 * 8 * p.tile_rows + tile % 8 : tile * p.tile_rows;
  const int outputs = p.cols * p.tile_rows;
  float* const partial =
      p.partial + (static_cast<int64_t>(blockIdx.z) * gridDim.x + tile) * p.slices * COLS * p.tile_rows;
  const tile::BatchOffset offset = tile::batch_offset(p.epilogue, blockIdx.z);
  const auto finish = [&](int o, float sum) {
    const int col = o / p.tile_rows, row = row0 + (o - col * p.tile_rows) * Traits::kRowStep;
    if (row >= p.rows) return;
    float v[8] = {sum};
    if (p.swapped) {
      tile::finish<T>(p.epilogue, offset, row, col, {0, 1}, true, v);
    } else {
      tile::finish<T>(p.epilogue, offset, col, row, {0, 1}, true, v);
    }
  };

  // A block to a slice, or one to them all (tile/counters.cu says when).
#pragma unroll 1
  for (int slice = blockIdx.y; slice < p.slices; slice += gridDim.y) {
    const int slice0 = slice * p.slice_k;
    Walk walk(p, w, row0, slice0, xs, sums);
    const int units = walk.units();
    Chunks chunks[DEPTH];
    ptx::grid_dependency_wait();
#pragma unroll
    for (int d = 0; d < DEPTH; ++d) walk.next(chunks[d]);
    if (slice != static_cast<int>(blockIdx.y)) __syncthreads();  // the slice before is added up
    stage_x<Traits>(p, x, slice0 - Walk::shift_of(p, w, row0), xs);
    if constexpr (Traits::kNarrow && !Traits::kKMajor) {
      if (threadIdx.x < kWarps) shifts[threadIdx.x] = Walk::shift_of(p, w, row0, threadIdx.x);
    }
    __syncthreads();

#pragma unroll 1
    for (int u = 0; u < units; u += DEPTH) {
#pragma unroll
      for (int d = 0; d < DEPTH; ++d) {
        if (u + d >= units) break;
        walk.add(chunks[d]);
        walk.next(chunks[d]);
      }
    }
    if (p.releases_early) ptx::grid_launch_dependents();
    walk.end();
    __syncthreads();

    for (int o = threadIdx.x; o < outputs; o += kThreads) {
      const int col = o / p.tile_rows;
      const float sum = Walk::total(p, sums, shifts, o - col * p.tile_rows, col);
      if (p.slices == 1) {
        finish(o, sum);
      } else {
        partial[slice * outputs + o] = sum;
      }
    }
  }
  if (p.slices == 1) return;
  if (gridDim.y == 1) {
    __syncthreads();
  } else if (!tile::arrives_last(counters, p.slot)) {
    return;
  }

  if (p.slices <= 16) {
    for (int o = threadIdx.x; o < outputs; o += kThreads) {
      float sum = 0.0f;
#pragma unroll 4
      for (int i = 0; i < p.slices; ++i) sum += ptx::ld_l2_4(partial + i * outputs + o);
      finish(o, sum);
    }
  } else {  // a warp to a sum
    for (int o = threadIdx.x / 32; o < outputs; o += kWarps) {
      float sum = 0.0f;
#pragma unroll 4
      for (int i = threadIdx.x % 32; i < p.slices; i += 32) sum += ptx::ld_l2_4(partial + i * outputs + o);
      for (int apart = 16; apart > 0; apart /= 2) sum += __shfl_xor_sync(~0u, sum, apart);
      if (threadIdx.x % 32 == 0) finish(o, sum);
    }
  }
}

}  // namespace hgemm::gemv
