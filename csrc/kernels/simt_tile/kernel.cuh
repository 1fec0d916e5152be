// float32 GEMM by register tiles on CUDA cores, in any layout and alignment, on sm_80 and newer.
//
// A block computes tiles of D, one after the other. cp.async loads k-tiles of A and B through a pipeline in shared
// memory, where the rows of an operand are neighbours: 16 bytes at a time where it lies so in global memory as well and
// is aligned, and 4 bytes otherwise, which transposes a K-major operand on the way. Elements beyond the ends of A and B
// arrive as zeros. The copies of the next tile begin while this one is computed.
//
// A thread loads its elements of a k into registers while it multiplies those of the k before, across k-tiles as well.
//
// Each sum is one chain of fma in K's order, unless K is divided: between warps of a block (WK), whose sums are added
// in shared memory, or between blocks, whose sums go through the workspace to a second kernel, sum_slices. Both add
// them in a fixed order, so the result has the same bits every time, and is symmetric for x @ x.T.
#pragma once

#include <cstdint>

#include "core/fast_divisor.h"
#include "kernels/simt_tile/config.h"
#include "ptx/cp_async.cuh"
#include "ptx/dependent_launch.cuh"
#include "ptx/global.cuh"
#include "ptx/shared.cuh"
#include "ptx/smem_addr.cuh"
#include "tile/epilogue.cuh"
#include "tile/raster.h"

namespace hgemm::simt_tile {

/// A or B.
struct Matrices {
  const float* data;
  int64_t ld, batch[2];  // strides in elements: leading dimension, outer and inner batch
  int64_t turn, step;    // elements from one copy of a thread to its next, and from one k-tile to the next
  bool is_k_major;
  bool is_wide;  // it consists of aligned 16-byte chunks
};

/// The run-time parameters. Strides count elements.
struct Params {
  Matrices a, b;
  FastDivisor batch_inner;  // extent of the inner batch dimension
  tile::Raster raster;
  int m, n, k;
  int slice_k;         // as in Schedule
  uint32_t pieces;     // slices of K of all tiles
  FastDivisor slices;  // of a tile
  int log2_sharers;    // threads of sum_slices that share the slices of a result
  bool direct;         // rows of D are aligned to 16 bytes, and D is alpha * A @ B
  float* partial;      // partial sums, (batches, tiles, slices, BM, BN)
  tile::EpilogueParams epilogue;
};

/// The position of a tile: its batch, and its first row and column.
struct TilePlace {
  uint32_t outer, inner;
  int row0, col0;
};
template <class Config>
__device__ __forceinline__ TilePlace tile_place(const Params& p, uint32_t tile) {
  const tile::RasterUnit unit = tile::unit_at(p.raster, tile);
  const uint32_t outer = p.batch_inner.quotient(unit.batch), inner = unit.batch - outer * p.batch_inner.divisor();
  return {outer, inner, static_cast<int>(unit.row) * Config::BM, static_cast<int>(unit.col) * Config::BN};
}
__device__ __forceinline__ int64_t batch_offset(const int64_t (&stride)[2], const TilePlace& place) {
  return place.outer * stride[0] + place.inner * stride[1];
}

/// Copies (BK, ROWS) k-tiles of an operand to shared memory, with a row pitch of PITCH floats.
template <int BK, int ROWS, int PITCH, int kThreads>
class Operand {
  /// How the threads share the copies. An MN-major operand is copied in rows of ROWS, kFloats at a time, and a K-major
  /// one in columns of BK.
  template <int kExtent, int kFloats>
  struct Share {
    static constexpr int kPerLine = kExtent / kFloats;  // copies of a line
    // Lines that the threads copy at once, or else the copies of a line that a thread makes.
    static constexpr int kAtOnce = kThreads > kPerLine ? kThreads / kPerLine : 1;
    static constexpr int kInLine = kPerLine > kThreads ? kPerLine / kThreads : 1;
    static_assert(kThreads * kInLine == kPerLine * kAtOnce);
    static __device__ __forceinline__ int line(int thread) { return thread / kPerLine; }
    static __device__ __forceinline__ int at(int thread) { return thread % kPerLine * kFloats; }
  };
  using Wide = Share<ROWS, 4>;
  using Narrow = Share<ROWS, 1>;
  using Transposed = Share<BK, 1>;
  static_assert(BK % Wide::kAtOnce == 0 && BK % Narrow::kAtOnce == 0 && ROWS % Transposed::kAtOnce == 0);

 public:
  /// Sets x.turn and x.step, which the host knows. They are then constants of the launch and take no registers.
  static void set_strides(Matrices* x) {
    x->turn = x->ld * (x->is_k_major ? Transposed::kAtOnce : x->is_wide ? Wide::kAtOnce : Narrow::kAtOnce);
    x->step = BK * (x->is_k_major ? 1 : x->ld);
  }

  /// Goes to another tile. `offset`: of the matrix, in elements; row0 and k0: where the tile begins in it.
  __device__ __forceinline__ void start(const Matrices& x, int64_t offset, int row0, int rows, int k0) {
    const int thread = threadIdx.x;
    rows_left_ = rows - row0;
    from_ = x.data + offset;
    if (x.is_k_major) {
      from_ += (row0 + Transposed::line(thread)) * x.ld + k0 + Transposed::at(thread);
    } else if (x.is_wide) {
      from_ += (k0 + Wide::line(thread)) * x.ld + row0 + Wide::at(thread);
    } else {
      from_ += (k0 + Narrow::line(thread)) * x.ld + row0 + Narrow::at(thread);
    }
  }

  /// Starts copying the next k-tile, of which k_left k lie in the slice.
  __device__ __forceinline__ void fetch(const Matrices& x, uint32_t to, int k_left) {
    const int thread = ptx::opaque(threadIdx.x);  // recomputed each time, to leave registers for the sums
    const float* from = from_;
    if (x.is_k_major) {
      const int row = Transposed::line(thread), k = Transposed::at(thread);
      to += (k * PITCH + row) * 4;
#pragma unroll 4
      for (int i = 0; i < ROWS; i += Transposed::kAtOnce, from += x.turn) {
#pragma unroll
        for (int j = 0; j < Transposed::kInLine; ++j) {
          const uint32_t bytes = row + i < rows_left_ && k + j * kThreads < k_left ? 4 : 0;
          ptx::cp_async_part_4(to + (i + j * kThreads * PITCH) * 4, reinterpret_cast<uint64_t>(from + j * kThreads),
                               bytes);
        }
      }
    } else if (x.is_wide) {
      const int k = Wide::line(thread), row = Wide::at(thread);
      to += (k * PITCH + row) * 4;
#pragma unroll
      for (int i = 0; i < BK; i += Wide::kAtOnce, from += x.turn) {
#pragma unroll
        for (int j = 0; j < Wide::kInLine; ++j) {
          const int left = rows_left_ - row - j * kThreads * 4;
          const uint32_t bytes = k + i < k_left ? 4 * max(min(left, 4), 0) : 0;
          ptx::cp_async_part_16(to + (i * PITCH + j * kThreads * 4) * 4, from + j * kThreads * 4, bytes);
        }
      }
    } else {
      const int k = Narrow::line(thread), row = Narrow::at(thread);
      to += (k * PITCH + row) * 4;
#pragma unroll 4
      for (int i = 0; i < BK; i += Narrow::kAtOnce, from += x.turn) {
#pragma unroll
        for (int j = 0; j < Narrow::kInLine; ++j) {
          const uint32_t bytes = k + i < k_left && row + j * kThreads < rows_left_ ? 4 : 0;
          ptx::cp_async_part_4(to + (i * PITCH + j * kThreads) * 4, reinterpret_cast<uint64_t>(from + j * kThreads),
                               bytes);
        }
      }
    }
    from_ += x.step;
  }

 private:
  const float* from_ = nullptr;
  int rows_left_ = 0;
};

template <class Config>
using OperandA = Operand<Config::BK, Config::BM, Config::kPitchA, Config::kThreads>;
template <class Config>
using OperandB = Operand<Config::BK, Config::BN, Config::kPitchB, Config::kThreads>;

__device__ __forceinline__ void add(float4* to, const float4& v) {
  to->x += v.x, to->y += v.y, to->z += v.z, to->w += v.w;
}

/// The position of a thread: its warp along the k of a stage, and its first row and column in the tile.
template <class Config>
struct Place {
  int wk, row, col;
  __device__ __forceinline__ Place(int thread) {
    const int lane = thread % 32, warp = thread / 32;
    const int low = Config::kLanesM == 8 ? lane & 3 : lane & 1,
              side = Config::kLanesM == 8 ? lane >> 2 & 1 : lane >> 1 & 3;
    const int lane_m = Config::kLanesM == 8 ? low | (lane >> 1 & 4) : low | (lane >> 2 & 2);
    const int lane_n = Config::kLanesM == 8 ? side | (lane >> 3 & 2) : side | (lane >> 2 & 4);
    wk = warp / (Config::kWarpsM * Config::kWarpsN);
    row = warp % Config::kWarpsM * Config::WM + 4 * lane_m;
    col = warp / Config::kWarpsM % Config::kWarpsN * Config::WN + 4 * lane_n;
  }
};

/// Stores four neighbouring results of D, which lie at `to`; n_left of them, at least one, lie in D.
__device__ __forceinline__ void store_four(float* to, const float4& v, int n_left) {
  if (n_left >= 4) {
    *reinterpret_cast<float4*>(to) = v;
    return;
  }
  to[0] = v.x;
  if (n_left > 1) to[1] = v.y;
  if (n_left > 2) to[2] = v.z;
}

/// A thread's results, its elements of two k, and what becomes of them.
template <class Config>
class Results {
  static constexpr int BM = Config::BM, BN = Config::BN, TM = Config::TM, TN = Config::TN, WK = Config::WK;
  static constexpr int kFours = Config::kFours, kGroup = Config::kGroup, kPerRow = TN / 4;
  static constexpr int kOwn = kFours / WK;  // fours of this thread after the sums of the WK warps

 public:
  /// Loads this thread's elements of a k, the first of which in a stage lies at `from`.
  __device__ __forceinline__ void load(int buffer, const float* from_a, const float* from_b) {
#pragma unroll
    for (int i = 0; i < TM; i += 4) read_four(&a_[buffer][i], from_a + i * Config::kLanesM);
#pragma unroll
    for (int j = 0; j < TN; j += 4) read_four(&b_[buffer][j], from_b + j * Config::kLanesN);
  }

  /// Adds the products of these elements.
  __device__ __forceinline__ void add(int buffer) {
#pragma unroll
    for (int j = 0; j < TN; ++j) {
#pragma unroll
      for (int i = 0; i < TM; ++i) sums_[i][j] = fmaf(a_[buffer][i], b_[buffer][j], sums_[i][j]);
    }
  }

  /// Stores the results, or the sums of slice `slice` of tile `tile`, and sets the sums to zero. Where `smem` is used,
  /// no copies to it are in flight.
  __device__ __forceinline__ void finish(const Params& p, uint32_t tile, uint32_t slice, float* smem) {
    const Place<Config> place(ptx::opaque(threadIdx.x));
    const TilePlace at = tile_place<Config>(p, tile);
    // Four number f of a thread: group f % kPerRow of the columns in row f / kPerRow.
    const auto row_of = [&](int f) { return place.row + f / kPerRow / 4 * (4 * Config::kLanesM) + f / kPerRow % 4; };
    const auto col_of = [&](int f) { return place.col + f % kPerRow * (4 * Config::kLanesN); };
    float4 own[kOwn];
    int first = 0;  // the first four that this thread has
    if constexpr (WK == 1) {
#pragma unroll
      for (int f = 0; f < kOwn; ++f) own[f] = four(f);
    } else {
      float4* const all = reinterpret_cast<float4*>(smem);  // (WK, kFours, kGroup)
      const int in_group = threadIdx.x % kGroup;
      first = place.wk * kOwn;
      __syncthreads();
#pragma unroll
      for (int f = 0; f < kFours; ++f) all[(place.wk * kFours + f) * kGroup + in_group] = four(f);
      __syncthreads();
#pragma unroll
      for (int f = 0; f < kOwn; ++f) {
        own[f] = all[(first + f) * kGroup + in_group];
#pragma unroll
        for (int w = 1; w < WK; ++w) simt_tile::add(&own[f], all[(w * kFours + first + f) * kGroup + in_group]);
      }
    }
#pragma unroll
    for (int i = 0; i < TM; ++i) {
#pragma unroll
      for (int j = 0; j < TN; ++j) sums_[i][j] = 0.0f;
    }

    if (p.slices.divisor() > 1) {
      float* const to = p.partial + (static_cast<int64_t>(tile) * p.slices.divisor() + slice) * (BM * BN);
#pragma unroll
      for (int f = 0; f < kOwn; ++f) {
        const int row = row_of(first + f), col = col_of(first + f);
        if (at.row0 + row < p.m && at.col0 + col < p.n) *reinterpret_cast<float4*>(to + row * BN + col) = own[f];
      }
      return;
    }
    const tile::EpilogueParams& e = p.epilogue;
    const tile::BatchOffset offset{batch_offset(e.d_batch, at), batch_offset(e.c_batch, at)};
    if (p.direct) {
      float* const d = static_cast<float*>(e.d) + offset.d;
#pragma unroll
      for (int f = 0; f < kOwn; ++f) {
        const int row = at.row0 + row_of(first + f), col = at.col0 + col_of(first + f);
        float4 v = own[f];
        v.x *= e.alpha, v.y *= e.alpha, v.z *= e.alpha, v.w *= e.alpha;
        if (row < p.m && col < p.n) store_four(d + row * e.ldd + col, v, p.n - col);
      }
      return;
    }
    // Through shared memory, so that neighbouring threads have neighbouring elements of D and C.
    __syncthreads();
#pragma unroll
    for (int f = 0; f < kOwn; ++f) {
      *reinterpret_cast<float4*>(smem + row_of(first + f) * Config::kPitchSums + col_of(first + f)) = own[f];
    }
    __syncthreads();
#pragma unroll 4
    for (int o = threadIdx.x; o < BM * BN; o += Config::kThreads) {
      const int row = at.row0 + o / BN, col = at.col0 + o % BN;
      if (row >= p.m || col >= p.n) continue;
      float v[8] = {smem[o / BN * Config::kPitchSums + o % BN]};
      tile::finish<float>(e, offset, row, col, {0, 1}, true, v);
    }
  }

 private:
  __device__ __forceinline__ float4 four(int f) const {
    const float* const v = sums_[f / kPerRow] + f % kPerRow * 4;
    return make_float4(v[0], v[1], v[2], v[3]);
  }
  static __device__ __forceinline__ void read_four(float* to, const float* from) {
    const float4 v = *reinterpret_cast<const float4*>(from);
    to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
  }

  float sums_[TM][TN] = {};
  float a_[2][TM], b_[2][TN];  // elements of a k, and those of the next one
};

/// A block computes pieces blockIdx.x, blockIdx.x + gridDim.x and so on: a piece is a slice of K of a tile. The copies
/// of one begin while those before are computed, except where the results go through shared memory: then every block
/// has one piece.
template <class Config>
__global__ void __launch_bounds__(Config::kThreads, Config::BLOCKS) kernel(const __grid_constant__ Params p) {
  constexpr int BM = Config::BM, BN = Config::BN, BK = Config::BK, KG = Config::KG, STAGES = Config::STAGES;
  constexpr int kPitchA = Config::kPitchA, kPitchB = Config::kPitchB;
  extern __shared__ __align__(128) float smem[];  // STAGES x { A (BK, kPitchA), B (BK, kPitchB) }; afterwards the sums

  const uint32_t ring = ptx::smem_addr(smem);
  OperandA<Config> a;
  OperandB<Config> b;
  uint32_t fetched = blockIdx.x;  // the piece that is being copied
  int fetched_k = 0;              // its k that are still to be copied
  const auto start = [&] {
    const uint32_t tile = p.slices.quotient(fetched), slice = fetched - tile * p.slices.divisor();
    const int begin = slice * p.slice_k;
    fetched_k = min(p.slice_k, p.k - begin);
    const TilePlace at = tile_place<Config>(p, tile);
    a.start(p.a, batch_offset(p.a.batch, at), at.row0, p.m, begin);
    b.start(p.b, batch_offset(p.b.batch, at), at.col0, p.n, begin);
  };
  const auto fetch = [&](int stage) {
    if (fetched < p.pieces) {
      const uint32_t to = ring + stage * (Config::kStage * 4);
      a.fetch(p.a, to, fetched_k);
      b.fetch(p.b, to + Config::kStageA * 4, fetched_k);
      fetched_k -= BK;
      if (fetched_k <= 0) {
        fetched += gridDim.x;
        if (fetched < p.pieces) start();
      }
    }
    ptx::cp_async_commit();
  };

  start();
  ptx::grid_dependency_wait();
#pragma unroll 1
  for (int s = 0; s < STAGES; ++s) fetch(s);
  const Place<Config> place(threadIdx.x);
  const float* const first_a = smem + place.wk * KG * kPitchA + place.row;
  const float* const first_b = smem + Config::kStageA + place.wk * KG * kPitchB + place.col;
  Results<Config> results;
  int at = 0;  // the stage in use, in floats
  ptx::cp_async_wait<STAGES - 1>();
  __syncthreads();
  results.load(0, first_a, first_b);
#pragma unroll 1
  for (uint32_t piece = blockIdx.x; piece < p.pieces; piece += gridDim.x) {
    const uint32_t tile = p.slices.quotient(piece), slice = piece - tile * p.slices.divisor();
    // Where the tile reaches beyond D, a warp may have nothing to compute.
    const TilePlace origin = tile_place<Config>(p, tile);
    const bool has_results = origin.row0 + place.row / Config::WM * Config::WM < p.m &&
                             origin.col0 + place.col / Config::WN * Config::WN < p.n;
    int left = min(p.slice_k, p.k - static_cast<int>(slice) * p.slice_k);
#pragma unroll 1
    do {
      if (has_results) {
#pragma unroll
        for (int k = 0; k < KG - 1; ++k) {
          results.load((k + 1) % 2, first_a + at + (k + 1) * kPitchA, first_b + at + (k + 1) * kPitchB);
          results.add(k % 2);
        }
      }
      const int next = at == (STAGES - 1) * Config::kStage ? 0 : at + Config::kStage;
      ptx::cp_async_wait<STAGES - 2>();
      __syncthreads();  // the next stage has arrived for all, and nobody reads this one any more
      fetch(at / Config::kStage);
      results.load(0, first_a + next, first_b + next);
      if (has_results) results.add((KG - 1) % 2);
      at = next;
      left -= BK;
    } while (left > 0);
    if (piece + gridDim.x >= p.pieces) ptx::grid_launch_dependents();
    results.finish(p, tile, slice, smem);
  }
}

constexpr int kSumThreads = 256;

/// Adds up the slices of K. Block (x, y) has a part of the results of tile x: 2^log2_sharers threads share each four of
/// them, and add every 2^log2_sharers-th slice.
template <class Config>
__global__ void __launch_bounds__(kSumThreads) sum_slices(const __grid_constant__ Params p) {
  constexpr int BM = Config::BM, BN = Config::BN;
  __shared__ float4 parts[kSumThreads];
  const int slices = p.slices.divisor(), sharers = 1 << p.log2_sharers, fours = kSumThreads >> p.log2_sharers;
  const int sharer = threadIdx.x / fours, four = blockIdx.y * fours + threadIdx.x % fours;
  const TilePlace tile = tile_place<Config>(p, blockIdx.x);
  const int row = tile.row0 + four / (BN / 4), col = tile.col0 + four % (BN / 4) * 4;
  const bool is_inside = row < p.m && col < p.n;
  const float* const from = p.partial + static_cast<int64_t>(blockIdx.x) * slices * (BM * BN) + four * 4;

  ptx::grid_dependency_wait();
  float4 sum = make_float4(0, 0, 0, 0);
  if (is_inside) {
#pragma unroll 8
    for (int i = sharer; i < slices; i += sharers) add(&sum, ptx::ld_l2_16(from + i * (BM * BN)));
  }
  ptx::grid_launch_dependents();
  parts[threadIdx.x] = sum;
  __syncthreads();
  if (sharer > 0 || !is_inside) return;
  for (int i = 1; i < sharers; ++i) add(&sum, parts[i * fours + threadIdx.x]);
  const tile::EpilogueParams& e = p.epilogue;
  const tile::BatchOffset offset{batch_offset(e.d_batch, tile), batch_offset(e.c_batch, tile)};
  float v[8] = {sum.x, sum.y, sum.z, sum.w};
  tile::finish<float>(e, offset, row, col, {0, min(p.n - col, 4)}, true, v);
}

}  // namespace hgemm::simt_tile
