// Batched GEMV: each matrix W of a batch times a vector x of its own, on CUDA cores.
//
// The kernel is limited by reading W, and most of its matrices are small. So a warp issues the loads of a whole piece
// of W at once, straight into registers, and other warps of the SM compute meanwhile. There is no ring, and no barrier
// unless several warps share K.
//  - K-major W: `lanes` lanes of a warp share rows, each at its own k, and the other lanes take other rows. A lane
//    multiplies one chunk of x with several rows.
//  - MN-major W: `lanes` lanes lie along the rows of W, which are contiguous, and the other lanes take other k. A lane
//    loads the same rows at consecutive k.
//
// Shuffles add up the sums of lanes. A team's warps, and the rows that its lanes ended up with, meet in shared memory,
// from which the results are stored in order.
#pragma once

#include <cstdint>
#include <cstring>

#include "core/convert.cuh"
#include "core/fast_divisor.h"
#include "kernels/batched_gemv/config.h"
#include "ptx/dependent_launch.cuh"
#include "ptx/global.cuh"
#include "tile/epilogue.cuh"

namespace hgemm::batched_gemv {

/// The compile-time parameters of the kernel: Config, the element type, the memory order of W, the bytes of a load, and
/// if W is K-major the rows of a lane.
template <class Config, class T_, Major kMajor, int kBytes_, int kRows_>
struct Traits : Config {
  using T = T_;
  static constexpr bool kKMajor = kMajor == Major::kK;
  static constexpr int kBytes = kBytes_, kElements = kBytes / static_cast<int>(sizeof(T));  // of a chunk
  static constexpr int kLoads = loads_of(Config::LOADS, kBytes);
  static constexpr int kRows = kRows_;
  static constexpr int kDeep = kLoads / kRows;  // K-major: chunks along K of a row that a lane loads at a time
  static constexpr int kSums = kKMajor ? kRows : kElements;
  static_assert(kElements >= 1);
};

/// The run-time parameters. Strides count elements.
struct Params {
  const void *w, *x;
  int64_t ldw, x_row, x_k;            // leading dimension of W; strides of x
  int64_t w_batch[2], x_batch[2];     // batch strides, outer and inner
  uint32_t batch_inner;               // extent of the inner batch dimension
  int rows, cols, k;                  // W is (rows, k), x is (cols, k), where cols is 1
  int log2_lanes, log2_warps, width;  // as in Schedule, lanes and warps by their logarithms
  uint32_t all_tiles;                 // as in Schedule
  FastDivisor tiles, inner;           // tiles of a matrix, batch_inner
  bool swapped;                       // the rows of D are those of W; otherwise its columns are
  bool wide_x;                        // as in Schedule
  bool plain;                         // D = alpha * A @ B
  tile::EpilogueParams epilogue;
};

/// Consecutive elements, as one load reads them.
template <class T, int kCount>
struct alignas(sizeof(T) * kCount) Chunk {
  T x[kCount];
};

/// Loads the chunk at an address that is a multiple of its size. `kOnce`: it is not read again.
template <bool kOnce, class T, int kCount>
__device__ __forceinline__ void load(Chunk<T, kCount>& chunk, const T* from) {
  if constexpr (sizeof(chunk) == 16) {
    const uint4 v = kOnce ? ptx::ld_once_16(from) : ptx::ld_16(from);
    memcpy(&chunk, &v, 16);
  } else if constexpr (sizeof(chunk) == 8) {
    const uint2 v = ptx::ld_8(from);
    memcpy(&chunk, &v, 8);
  } else if constexpr (sizeof(chunk) == 4) {
    const uint32_t v = ptx::ld_4(from);
    memcpy(&chunk, &v, 4);
  } else {
    const uint16_t v = ptx::ld_2(from);
    memcpy(&chunk, &v, 2);
  }
}

/// Loads elements k.. of x, with zeros beyond its end.
template <class T, int kCount>
__device__ __forceinline__ void load_x(Chunk<T, kCount>& chunk, const Params& p, const T* x, int k) {
  if (p.wide_x && k + kCount <= p.k) {
    load<false>(chunk, x + k);
    return;
  }
  chunk = {};
  if (k >= p.k) return;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    Chunk<T, 1> one{};
    if (k + i < p.k) load<false>(one, x + (k + i) * p.x_k);
    chunk.x[i] = one.x[0];
  }
}

/// Adds a lane's first kCount sums over the lanes whose index differs in the bits apart, apart / 2, ... least. At each
/// step a lane passes half of its sums to the lane `apart` away and receives that lane's other half; with one sum left,
/// both keep the total. `first`: the index of the first sum that this lane ends up with.
template <int kCount, int kSums>
__device__ __forceinline__ void exchange(float (&sums)[kSums], int apart, int least, int* first) {
  if (apart < least) return;
  if constexpr (kCount == 1) {
#pragma unroll 1
    for (; apart >= least; apart /= 2) sums[0] += __shfl_xor_sync(~0u, sums[0], apart);
  } else {
    constexpr int kHalf = kCount / 2;
    const bool high = threadIdx.x & apart;
#pragma unroll
    for (int i = 0; i < kHalf; ++i) {
      const float low = sums[i], up = sums[i + kHalf];
      sums[i] = (high ? up : low) + __shfl_xor_sync(~0u, high ? low : up, apart);
    }
    if (high) *first += kHalf;
    exchange<kHalf>(sums, apart / 2, least, first);
  }
}

/// The part of one warp of a team: the sums of products over its share of k. They go to `to`, (width).
template <class Traits>
__device__ __forceinline__ void multiply(const Params& p, const typename Traits::T* w, const typename Traits::T* x,
                                         int row0, int part, float* to) {
  using T = typename Traits::T;
  constexpr int kElements = Traits::kElements, kSums = Traits::kSums, kLoads = Traits::kLoads;
  const int lanes = 1 << p.log2_lanes, across = 32 >> p.log2_lanes;
  const int along = threadIdx.x & (lanes - 1), beside = threadIdx.x % 32 >> p.log2_lanes;
  float sums[kSums] = {};
  int first = 0;
  if constexpr (Traits::kKMajor) {
    constexpr int kRows = Traits::kRows, kDeep = Traits::kDeep;
    const int step = kElements << (p.log2_warps + p.log2_lanes), left = p.rows - row0 - beside;
    const int64_t apart = across * p.ldw;
    int k = ((part << p.log2_lanes) + along) * kElements;
    const T* from = w + (row0 + beside) * p.ldw + k;
#pragma unroll 1
    for (; k < p.k; k += kDeep * step, from += kDeep * step) {
      Chunk<T, kElements> unit[kDeep][kRows], xs[kDeep];
#pragma unroll
      for (int j = 0; j < kDeep; ++j) {
        const T* at = from + j * step;
#pragma unroll
        for (int i = 0; i < kRows; ++i) {
          unit[j][i] = {};
          if (i * across < left && (j == 0 || k + j * step < p.k)) load<true>(unit[j][i], at);
          at += apart;
        }
      }
#pragma unroll
      for (int j = 0; j < kDeep; ++j) load_x(xs[j], p, x, k + j * step);
#pragma unroll
      for (int j = 0; j < kDeep; ++j) {
#pragma unroll
        for (int e = 0; e < kElements; ++e) {
          const float v = to_float(xs[j].x[e]);
#pragma unroll
          for (int i = 0; i < kRows; ++i) sums[i] = fmaf(to_float(unit[j][i].x[e]), v, sums[i]);
        }
      }
    }
    exchange<kSums>(sums, lanes / 2, 1, &first);
#pragma unroll
    for (int i = 0; i < kSums; ++i) {
      if (i == 0 || i * lanes < kSums) to[(first + i) * across + beside] = sums[i];
    }
  } else {
    constexpr int kCount = 16 / static_cast<int>(sizeof(T));  // elements of a load of x
    constexpr int kChunks = kLoads < kCount ? 1 : kLoads / kCount, kTake = kLoads < kCount ? kLoads : kCount;
    const int step = (across << p.log2_warps) * kLoads, row = along * kElements;
    int k = (part * across + beside) * kLoads;
    const T* from = w + k * p.ldw + row0 + row;
    if (row0 + row >= p.rows) k = p.k;
#pragma unroll 1
    for (; k < p.k; k += step, from += step * p.ldw) {
      Chunk<T, kElements> unit[kLoads];
      Chunk<T, kTake> xs[kChunks];
      const T* at = from;
#pragma unroll
      for (int i = 0; i < kLoads; ++i) {
        unit[i] = {};
        if (i == 0 || k + i < p.k) load<true>(unit[i], at);
        at += p.ldw;
      }
#pragma unroll
      for (int i = 0; i < kChunks; ++i) load_x(xs[i], p, x, k + i * kTake);
#pragma unroll
      for (int i = 0; i < kLoads; ++i) {
        const float v = to_float(xs[i / kTake].x[i % kTake]);
#pragma unroll
        for (int e = 0; e < kElements; ++e) sums[e] = fmaf(to_float(unit[i].x[e]), v, sums[e]);
      }
    }
    exchange<kSums>(sums, 16, lanes, &first);
#pragma unroll
    for (int i = 0; i < kSums; ++i) {
      if (i == 0 || i * across < kSums) to[row + first + i] = sums[i];
    }
  }
}

/// The batch offset of an operand, in elements.
__device__ __forceinline__ int64_t offset_of(const int64_t (&stride)[2], uint32_t outer, uint32_t inner) {
  return outer * stride[0] + inner * stride[1];
}

/// Stores the result of a row of W.
template <class T>
__device__ __forceinline__ void finish(const Params& p, tile::BatchOffset offset, int row, float sum) {
  const tile::EpilogueParams& e = p.epilogue;
  if (p.plain) {
    const int64_t at = offset.d + row * (p.swapped ? e.ldd : 1);
    if (e.out_f32) {
      static_cast<float*>(e.d)[at] = e.alpha * sum;
    } else {
      static_cast<T*>(e.d)[at] = from_float<T>(e.alpha * sum);
    }
  } else {
    float v[8] = {sum};
    tile::finish<T>(e, offset, p.swapped ? row : 0, p.swapped ? 0 : row, {0, 1}, true, v);
  }
}

template <class Traits>
__global__ void __launch_bounds__(32 * kMostWarps, Traits::BLOCKS) kernel(const __grid_constant__ Params p) {
  using T = typename Traits::T;
  extern __shared__ float values[];  // (teams, warps, width)
  const int warp = threadIdx.x / 32, team = warp >> p.log2_warps, part = warp - (team << p.log2_warps);
  const uint32_t index = blockIdx.x * (blockDim.x / 32 >> p.log2_warps) + team;
  const uint32_t matrix = p.tiles.quotient(index), tile = index - matrix * p.tiles.divisor();
  const uint32_t outer = p.inner.quotient(matrix), inner = matrix - outer * p.inner.divisor();
  const int row0 = tile * p.width;
  float* const of_team = values + (team << p.log2_warps) * p.width;

  ptx::grid_dependency_wait();
  ptx::grid_launch_dependents();
  if (index < p.all_tiles) {
    multiply<Traits>(p, static_cast<const T*>(p.w) + offset_of(p.w_batch, outer, inner),
                     static_cast<const T*>(p.x) + offset_of(p.x_batch, outer, inner), row0, part,
                     of_team + part * p.width);
  }
  if (p.log2_warps > 0) {
    __syncthreads();
  } else {
    __syncwarp();
  }
  if (index >= p.all_tiles) return;
  const tile::BatchOffset offset{offset_of(p.epilogue.d_batch, outer, inner),
                                 offset_of(p.epilogue.c_batch, outer, inner)};
  const int rows = min(p.width, p.rows - row0), threads = 32 << p.log2_warps;
#pragma unroll 1
  for (int i = threadIdx.x & (threads - 1); i < rows; i += threads) {
    float sum = of_team[i];
#pragma unroll 1
    for (int j = 1; j < 1 << p.log2_warps; ++j) sum += of_team[j * p.width + i];
    finish<T>(p, offset, row0 + i, sum);
  }
}

}  // namespace hgemm::batched_gemv
