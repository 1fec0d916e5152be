// Grouped products in float32 on CUDA cores.
//
// A block computes one output tile of one group (tile/groups.cuh). cp.async brings the operands to shared memory, an
// element at a time: so they may have any alignment, and a K-major operand is transposed on its way. Weights whose k is
// contiguous come in chunks of 16 bytes where they can, and are not transposed. A thread computes
// a (TM, TN) part of the tile by fma. Its accumulators are added to sums every kCarriedK k, and start again from zero:
// the error of one accumulator grows with its k. All kernels add up in the same order.
#pragma once

#include <cstdint>
#include <type_traits>

#include "core/problem.h"
#include "ptx/cp_async.cuh"
#include "ptx/smem_addr.cuh"
#include "tile/groups.cuh"

namespace hgemm::simt_grouped {

/// Copies the tiles (BK, EXTENT) of an operand, (k, extent), to shared memory rows of PITCH floats. `outer` and `inner`
/// are the strides of the extent and of k. Elements outside of the operand arrive as zeros.
template <int EXTENT, int BK, int PITCH, int THREADS>
class Copy {
  static constexpr int kEach = EXTENT * BK / THREADS;  // elements of a thread

 public:
  __device__ __forceinline__ Copy(const float* data, int64_t outer, int64_t inner, int first, int extent, int k)
      : data_(data), outer_(outer), inner_(inner), first_(first), extent_(extent), k_(k) {}

  /// The place in the tile of index `x` of the extent, and of the ones behind it.
  static __device__ __forceinline__ int offset(int x, int k) { return k * PITCH + x; }

  /// Starts to copy the tile whose first k is `k0` to shared address `dst`.
  __device__ __forceinline__ void fetch(uint32_t dst, int k0) const {
    if (inner_ == 1) {
      // A warp copies 8 k, which are one sector of memory, of 4 rows.
      constexpr int kBlocks = BK / 8, kWarps = THREADS / 32;
      const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        const int block = warp + i * kWarps;
        copy(dst, k0, block % kBlocks * 8 + lane % 8, block / kBlocks * 4 + lane / 8);
      }
    } else {
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        copy(dst, k0, threadIdx.x / EXTENT + i * (THREADS / EXTENT), threadIdx.x % EXTENT);
      }
    }
  }

 private:
  __device__ __forceinline__ void copy(uint32_t dst, int k0, int k, int x) const {
    const bool inside = first_ + x < extent_ && k0 + k < k_;
    const float* const from = data_ + (first_ + x) * outer_ + (k0 + k) * inner_;
    ptx::cp_async<4>(dst + offset(x, k) * 4, inside ? from : data_, inside);
  }

  const float* data_;
  int64_t outer_, inner_;
  int first_, extent_, k_;
};

/// Copies the tiles of a K-major operand in its own order, in chunks of 16 bytes. Its rows consist of whole aligned
/// chunks. Rows of shared memory have BK floats, and their chunks are swizzled: threads that read the same k of rows
/// four apart read from different banks.
template <int EXTENT, int BK, int THREADS>
class WideCopy {
  static constexpr int kChunks = BK / 4, kEach = EXTENT * kChunks / THREADS;  // chunks of a row, and of a thread
  static_assert(BK == 32, "the chunks of a row cover all banks");

 public:
  __device__ __forceinline__ WideCopy(const float* data, int64_t outer, int64_t, int first, int extent, int k)
      : data_(data), outer_(outer), first_(first), extent_(extent), k_(k) {}

  /// The place in the tile of the k from `k` on, a multiple of 4, of a row.
  static __device__ __forceinline__ int offset(int row, int k) {
    return row * BK + ((k / 4) ^ (row / 4 % kChunks)) * 4;
  }

  /// Starts to copy the tile whose first k is `k0` to shared address `dst`.
  __device__ __forceinline__ void fetch(uint32_t dst, int k0) const {
    const int chunk = threadIdx.x % kChunks, k = k0 + chunk * 4;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int row = threadIdx.x / kChunks + i * (THREADS / kChunks);
      const bool inside = first_ + row < extent_ && k < k_;
      const float* const from = data_ + (first_ + row) * outer_ + k;
      ptx::cp_async_16(dst + offset(row, chunk * 4) * 4, inside ? from : data_, inside);
    }
  }

 private:
  const float* data_;
  int64_t outer_;
  int first_, extent_, k_;
};

/// The row or column in the tile of a thread's element `i`. Its groups of four are apart, so that the threads of a warp
/// read consecutive ones. `part` of `parts`: the thread's place.
__device__ __forceinline__ int index_of(int part, int parts, int i) {
  return (i / 4 * parts + part) * 4 + i % 4;
}

/// `kWide`: B is K-major, and its rows consist of whole aligned chunks of 16 bytes.
template <class Config, bool kWide>
__global__ void __launch_bounds__(Config::kThreads, Config::kBlocks)
    kernel(const __grid_constant__ tile::GroupParams p) {
  constexpr int BM = Config::BM, BN = Config::BN, BK = Config::BK, TM = Config::TM, TN = Config::TN;
  constexpr int STAGES = Config::STAGES, kPartsM = BM / TM, kPartsN = BN / TN;
  extern __shared__ __align__(16) float smem[];  // STAGES x { A (BK, BM + 4), B (BK, BN + 4) or (BN, BK) }
  const uint32_t smem_base = ptx::smem_addr(smem);
  tile::GroupTile tile;
  if (!tile::tile_of_block<BM, BN>(p, &tile)) return;

  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int part_m = warp % Config::kWarpsM * 4 + lane / 8, part_n = warp / Config::kWarpsM * 8 + lane % 8;
  const Copy<BM, BK, Config::kPitchA, Config::kThreads> copy_a(static_cast<const float*>(p.a.data) + tile.a, p.a.row,
                                                               p.a.col, tile.m0, tile.m, tile.k);
  using CopyB =
      std::conditional_t<kWide, WideCopy<BN, BK, Config::kThreads>, Copy<BN, BK, Config::kPitchB, Config::kThreads>>;
  const CopyB copy_b(static_cast<const float*>(p.b.data) + tile.b, p.b.col, p.b.row, tile.n0, tile.n, tile.k);
  const auto fetch = [&](int stage, int k_tile) {
    const uint32_t at = smem_base + stage * Config::kStageFloats * 4;
    copy_a.fetch(at, k_tile * BK);
    copy_b.fetch(at + BK * Config::kPitchA * 4, k_tile * BK);
  };

  float acc[TM][TN] = {}, sums[TM][TN] = {};
  const auto carry = [&] {
#pragma unroll
    for (int i = 0; i < TM * TN; ++i) {
      sums[i / TN][i % TN] += acc[i / TN][i % TN];
      acc[i / TN][i % TN] = 0.0f;
    }
  };
  const int k_tiles = (tile.k + BK - 1) / BK;
#pragma unroll
  for (int s = 0; s < STAGES - 1; ++s) {
    if (s < k_tiles) fetch(s, s);
    ptx::cp_async_commit();
  }
  int stage = 0, free_stage = STAGES - 1;
  for (int kt = 0; kt < k_tiles; ++kt) {
    ptx::cp_async_wait<STAGES - 2>();
    __syncthreads();  // the k-tile is there, and no warp reads the one before it any more
    if (kt + STAGES - 1 < k_tiles) fetch(free_stage, kt + STAGES - 1);
    ptx::cp_async_commit();
    const float* const a = smem + stage * Config::kStageFloats + part_m * 4;
    const float* const b = smem + stage * Config::kStageFloats + BK * Config::kPitchA;
#pragma unroll
    for (int k4 = 0; k4 < BK; k4 += 4) {
      float4 y[4][TN / 4];  // of four k, or with kWide of four columns
#pragma unroll
      for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int j = 0; j < TN / 4; ++j) {
          const int column = index_of(part_n, kPartsN, j * 4);
          y[i][j] =
              *reinterpret_cast<const float4*>(b + CopyB::offset(kWide ? column + i : column, kWide ? k4 : k4 + i));
        }
      }
#pragma unroll
      for (int kk = 0; kk < 4; ++kk) {
        float4 x[TM / 4];
#pragma unroll
        for (int i = 0; i < TM / 4; ++i) {
          x[i] = *reinterpret_cast<const float4*>(a + (k4 + kk) * Config::kPitchA + i * kPartsM * 4);
        }
#pragma unroll
        for (int i = 0; i < TM; ++i) {
#pragma unroll
          for (int j = 0; j < TN; ++j) {
            const float4& of_b = kWide ? y[j % 4][j / 4] : y[kk][j / 4];
            acc[i][j] = fmaf((&x[i / 4].x)[i % 4], (&of_b.x)[kWide ? kk : j % 4], acc[i][j]);
          }
        }
      }
    }
    if (kt % (kCarriedK / BK) == kCarriedK / BK - 1) carry();
    free_stage = stage;
    stage = stage + 1 == STAGES ? 0 : stage + 1;
  }
  carry();

  float* const d = static_cast<float*>(const_cast<void*>(p.d.data)) + tile.d;
  const bool wide = reinterpret_cast<uint64_t>(d) % 16 == 0 && p.d.row % 4 == 0;
#pragma unroll
  for (int i = 0; i < TM; ++i) {
    const int row = tile.m0 + index_of(part_m, kPartsM, i);
    if (row >= tile.m) continue;
#pragma unroll
    for (int j = 0; j < TN; j += 4) {
      const int column = tile.n0 + index_of(part_n, kPartsN, j);
      float* const to = d + row * p.d.row + column;
      if (wide && column + 4 <= tile.n) {
        *reinterpret_cast<float4*>(to) = make_float4(sums[i][j], sums[i][j + 1], sums[i][j + 2], sums[i][j + 3]);
      } else {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          if (column + e < tile.n) to[e] = sums[i][j + e];
        }
      }
    }
  }
}

}  // namespace hgemm::simt_grouped
