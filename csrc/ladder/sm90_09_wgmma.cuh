// Parts shared by the Hopper steps: tiles in the 128-byte swizzle that TMA writes and wgmma reads, the stores to D, and
// the launch.
#pragma once

#include <cuda.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "core/problem.h"
#include "ptx/cluster.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/smem_addr.cuh"
#include "ptx/tma.cuh"
#include "ptx/wgmma.cuh"
#include "tile/raster.cuh"
#include "tile/tensor_map.h"

namespace hgemm::ladder {

/// D (m, n) = A (m, k) @ B (k, n); the tensor maps hold A's and B's addresses and strides.
struct TmaGemm {
  CUtensorMap a, b;
  __half* d;
  int m, n, k;
  uint32_t tiles_m, tiles_n;
  bool pairs_fit_d;  // two elements at an even column may be stored in one access
};

/// A line of variants.inc as a type. A warpgroup computes 64 rows and BN columns of D. The CLUSTER blocks of a cluster
/// lie one below the other in D and share B.
#define WGMMA_LINE(NAME, DTYPE, ACC, UNIT, BM_, BN_, BK_, STAGES_, THREADS_, SMEM_, SWIZZLES_, CLUSTER_)   \
  struct Line_##NAME {                                                                                     \
    static constexpr int BM = BM_, BN = BN_, BK = BK_, STAGES = STAGES_, THREADS = THREADS_, SMEM = SMEM_; \
    static constexpr int CLUSTER = CLUSTER_, kWarpgroups = BM / 64;                                        \
    static constexpr int kBytesA = BM * BK * 2, kBytesB = BN * BK * 2, kStageBytes = kBytesA + kBytesB;    \
    static_assert(BM % 64 == 0 && BN % 64 == 0 && BK == 64, "a row of the swizzle is 64 elements");        \
  }

/// The launcher of a line of variants.inc in a build without code for sm_90a.
#define WGMMA_NOT_BUILT(NAME, ...)                   \
  Status launch_##NAME(const StepProblem&, Stream) { \
    return cudaErrorNoKernelImageForDevice;          \
  }

/// The descriptor of a warpgroup's rows of A for one k16 step. A tile of A is one box of BM rows of 64 k, and the rows
/// of each warpgroup start 64 rows after those of the one before.
__device__ __forceinline__ uint64_t descriptor_a(uint32_t tile, int warpgroup, int step) {
  return ptx::wgmma_descriptor(tile + warpgroup * 64 * 128 + step * 32, 0, 1024);
}
/// The descriptor of B for one k16 step. The rows of B run along n: a tile is BN / 64 boxes of (64 k, 64 n), and wgmma
/// transposes.
__device__ __forceinline__ uint64_t descriptor_b(uint32_t tile, int step) {
  return ptx::wgmma_descriptor(tile + step * 16 * 128, 64 * 128, 1024);
}

/// Starts the loads of both operands' tiles, which complete on `bar`.
template <class Line>
__device__ __forceinline__ void load_tiles(const TmaGemm& g, uint32_t stage, uint32_t bar, int row, int col, int k) {
  ptx::mbarrier_arrive_expect_tx(bar, Line::kStageBytes);
  ptx::tma_load(stage, &g.a, bar, {k, row, 0, 0});
#pragma unroll
  for (int c = 0; c < Line::BN; c += 64) {
    ptx::tma_load(stage + Line::kBytesA + c * 128, &g.b, bar, {col + c, k, 0, 0});
  }
}

/// Issues the wgmma of one stage: four k16 steps in one group. `keep`: adds to the accumulators instead of overwriting
/// them.
template <class Line>
__device__ __forceinline__ void multiply_stage(float (&acc)[Line::BN / 2], uint32_t stage, int warpgroup, bool keep) {
  ptx::wgmma_fence();
#pragma unroll
  for (int step = 0; step < Line::BK / 16; ++step) {
    ptx::Wgmma<__half>::m64k16<Line::BN, 0, 1>(acc, descriptor_a(stage, warpgroup, step),
                                               descriptor_b(stage + Line::kBytesA, step), keep || step > 0);
  }
  ptx::wgmma_commit();
}

/// Writes a warpgroup's accumulators to D, where its tile starts at (row, col). For each group j of eight columns, lane
/// l of warp w holds the pairs at rows 16 w + l / 4 and 8 below, columns from 8 j + 2 (l % 4). A store of the warp
/// covers 16 bytes per row, and L2 merges these stores.
template <int BN>
__device__ __forceinline__ void store_sums(const TmaGemm& g, const float (&acc)[BN / 2], int row, int col) {
  const int lane = threadIdx.x % 32;
  row += threadIdx.x / 32 % 4 * 16 + lane / 4;
  col += lane % 4 * 2;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if (row + half * 8 >= g.m) continue;
    __half* const d = g.d + static_cast<int64_t>(row + half * 8) * g.n + col;
#pragma unroll
    for (int j = 0; j < BN / 8; ++j) {
      const int left = g.n - col - j * 8;
      const __half2 pair = __floats2half2_rn(acc[j * 4 + half * 2], acc[j * 4 + half * 2 + 1]);
      if (g.pairs_fit_d && left > 0) {
        *reinterpret_cast<__half2*>(d + j * 8) = pair;
      } else {
        if (left > 0) d[j * 8] = pair.x;
        if (left > 1) d[j * 8 + 1] = pair.y;
      }
    }
  }
}

/// The tile with number `id`, column by column inside panels of about 2048 rows, so that rows of A and columns of B are
/// shared in L2.
template <int BM>
__device__ __forceinline__ tile::TileCoord tile_at(const TmaGemm& g, uint32_t id) {
  return tile::grouped_raster<2048 / BM>(id, g.tiles_m, g.tiles_n);
}

/// Builds the kernel's arguments and launches at most `blocks` blocks, in clusters. With fewer blocks than tiles, a
/// block must loop over tiles.
template <class Line>
Status launch_tma(void (*kernel)(TmaGemm), const Problem& p, uint32_t blocks, Stream stream) {
  TmaGemm g{};
  if (const Status e = tensor_map({p.a.data, p.dtype, p.k, p.m, p.a.row_stride, {1, 1}, {0, 0}, Line::BM}, &g.a)) {
    return e;
  }
  if (const Status e = tensor_map({p.b.data, p.dtype, p.n, p.k, p.b.row_stride, {1, 1}, {0, 0}, Line::BK}, &g.b)) {
    return e;
  }
  g.d = static_cast<__half*>(p.d.data);
  g.m = static_cast<int>(p.m);
  g.n = static_cast<int>(p.n);
  g.k = static_cast<int>(p.k);
  g.tiles_m = static_cast<uint32_t>((p.m + Line::BM * Line::CLUSTER - 1) / (Line::BM * Line::CLUSTER));
  g.tiles_n = static_cast<uint32_t>((p.n + Line::BN - 1) / Line::BN);
  g.pairs_fit_d = reinterpret_cast<uintptr_t>(p.d.data) % 4 == 0 && p.n % 2 == 0;
  if (const cudaError_t e = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Line::SMEM);
      e != cudaSuccess) {
    return e;
  }
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {Line::CLUSTER, 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = std::min(g.tiles_m * g.tiles_n, blocks / Line::CLUSTER) * Line::CLUSTER;
  config.blockDim = Line::THREADS;
  config.dynamicSmemBytes = Line::SMEM;
  config.stream = static_cast<cudaStream_t>(stream);
  config.attrs = &cluster;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, kernel, g);
}

/// As `blocks` of launch_tma: one block per tile.
constexpr uint32_t kEveryTile = ~0u;

}  // namespace hgemm::ladder
