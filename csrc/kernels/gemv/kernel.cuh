// GEMV: one row, or a few, of x with a long operand W, on CUDA cores, in any alignment, on sm_80 and newer.
//
// A thread loads 16-byte chunks of W, four to a unit, with DEPTH units in flight. It multiplies them with x, which the
// block keeps in shared memory, and accumulates in float32.
//  - K-major W: the lanes of a warp share rows, four at a time, and shuffles add their sums. A warp continues with its
//    next rows without a pause in its loads.
//  - MN-major W: a thread computes eight rows of W, which are contiguous, and iterates along k.
// The sums of warps that share rows are added in shared memory.
//
// Slices of K may go to different blocks. Each block leaves its sums in the workspace. The last block to arrive, which
// a counter identifies, adds them all in a fixed order, so the result has the same bits every time.
//
// Unaligned operands: W is still loaded in aligned 16-byte chunks, and the other index is shifted to match.
//  - In a K-major W, the rows of a tile are eight rows apart, so that they all have the same offset from a 16-byte
//    boundary. x is stored as many elements later in shared memory.
//  - In an MN-major W, each warp takes the k of one residue modulo 8, which have the same offset. Its rows begin that
//    many rows earlier.
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

// The arrival counters of output tiles whose slices of K go to different blocks. They are all zero whenever no kernel
// that uses them is running: the last block to arrive at a counter resets it. tile/counters.cu assigns them to
// launches.
static __device__ unsigned counters[tile::kSlots * tile::kMaxCounted];

/// Copies slice_k elements of every row of x, starting at k = `first`, to shared memory, with zeros where x has no
/// elements. For an unaligned MN-major W, whose warps take every eighth k, the elements of one warp are contiguous.
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

  // One block per slice, or one block for all slices of a tile (tile/counters.cu says when).
#pragma unroll 1
  for (int slice = blockIdx.y; slice < p.slices; slice += gridDim.y) {
    const int slice0 = slice * p.slice_k;
    Walk walk(p, w, row0, slice0, xs, sums);
    const int units = walk.units();
    Chunks chunks[DEPTH];
    ptx::grid_dependency_wait();
#pragma unroll
    for (int d = 0; d < DEPTH; ++d) walk.next(chunks[d]);
    if (slice != static_cast<int>(blockIdx.y)) __syncthreads();  // the sums of the previous slice have been read
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
  } else {  // one warp per sum
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
