// The tensor-core GEMM for sm_80 and newer: mma.sync m16n8k16 with float32 accumulation.
//
// A block computes a (BM, BN) output tile. It iterates over the k-tiles of A and B with a pipeline of STAGES stages in
// shared memory, which cp.async fills. Each warp computes a (WM, WN) part of the output tile. Its fragments are
// double-buffered in registers, so that the ldmatrix of one k16 step overlaps the mma of the previous one. Shared
// memory is XOR-swizzled (tile/swizzle.cuh), not padded.
//
// The kernel reads all four operand layouts in place. An MN-major operand is stored in shared memory in its own order,
// and ldmatrix transposes it.
#pragma once

#include "core/convert.cuh"
#include "core/problem.h"
#include "kernels/sm80_mma/config.h"
#include "ptx/cp_async.cuh"
#include "ptx/mma.cuh"
#include "ptx/smem_addr.cuh"
#include "tile/epilogue.cuh"
#include "tile/raster.cuh"
#include "tile/smem_operand.cuh"

namespace hgemm::sm80_mma {

/// The compile-time parameters of the kernel: Config, element type, memory orders of A and B.
template <class Config_, class T_, Major kMajorA_, Major kMajorB_, bool kNarrow_>
struct Traits : Config_ {
  using T = T_;
  static constexpr Major kMajorA = kMajorA_, kMajorB = kMajorB_;
  static constexpr bool kNarrow = kNarrow_;  // operands need not consist of whole aligned 16-byte chunks
};

/// The run-time parameters. Strides count elements.
struct Params {
  const void *a, *b;
  int64_t lda, ldb;
  int64_t a_batch[2], b_batch[2];  // batch strides, outer and inner
  int m, n, k;
  uint32_t tiles_m, tiles_n, splits;  // output tiles along M and N; slices of K
  int k_tiles_per_split;
  int64_t batches;
  bool wide_a, wide_b;  // the operand consists of whole aligned 16-byte chunks
  tile::EpilogueParams epilogue;
};

template <class Traits>
__global__ void __launch_bounds__(Traits::kThreads, 1) kernel(const __grid_constant__ Params p) {
  using T = typename Traits::T;
  constexpr int BM = Traits::BM, BN = Traits::BN, BK = Traits::BK, WM = Traits::WM, WN = Traits::WN;
  constexpr int STAGES = Traits::STAGES, kSteps = BK / 16, MI = WM / 16, NJ = WN / 16;
  using SmemA = tile::SmemOperand<BM, BK, Traits::kMajorA>;
  using SmemB = tile::SmemOperand<BN, BK, Traits::kMajorB>;
  using CopyA = typename SmemA::template Copy<T, Traits::kThreads, Traits::kNarrow>;
  using CopyB = typename SmemB::template Copy<T, Traits::kThreads, Traits::kNarrow>;
  constexpr bool kKMajorA = SmemA::kIsKMajor, kKMajorB = SmemB::kIsKMajor;

  extern __shared__ __align__(1024) unsigned char smem[];  // STAGES x { A, B }
  const uint32_t smem_base = ptx::smem_addr(smem);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int warp_m = (warp % Traits::kWarpsM) * WM, warp_n = (warp / Traits::kWarpsM) * WN;

  // This block's output tile, matrix of the batch, and slice of K.
  const uint32_t tiles = p.tiles_m * p.tiles_n;
  const int64_t z = blockIdx.x / tiles;
  const tile::TileCoord tile =
      tile::grouped_raster(blockIdx.x - static_cast<uint32_t>(z) * tiles, p.tiles_m, p.tiles_n);
  const int64_t batch = z / p.splits;
  const int split = static_cast<int>(z - batch * p.splits);
  const int64_t outer = batch / p.epilogue.batch_inner, inner = batch - outer * p.epilogue.batch_inner;
  const T* a = static_cast<const T*>(p.a) + outer * p.a_batch[0] + inner * p.a_batch[1];
  const T* b = static_cast<const T*>(p.b) + outer * p.b_batch[0] + inner * p.b_batch[1];
  const int m0 = tile.m * BM, n0 = tile.n * BN;
  const int k_tile0 = split * p.k_tiles_per_split;
  const int k_tiles = max(0, min((p.k + BK - 1) / BK - k_tile0, p.k_tiles_per_split));
  const int k0 = k_tile0 * BK, k1 = min(p.k, k0 + k_tiles * BK);  // a fetch beyond k1 reads nothing

  CopyA copy_a(a, p.lda, kKMajorA ? m0 : k0, kKMajorA ? k0 : m0, kKMajorA ? p.m : k1, kKMajorA ? k1 : p.m, p.wide_a);
  CopyB copy_b(b, p.ldb, kKMajorB ? n0 : k0, kKMajorB ? k0 : n0, kKMajorB ? p.n : k1, kKMajorB ? k1 : p.n, p.wide_b);
  const auto stage_a = [&](int stage) { return smem_base + stage * Traits::kStageBytes; };
  const auto stage_b = [&](int stage) { return smem_base + stage * Traits::kStageBytes + CopyA::kBytes; };
  const auto fetch = [&](int stage) {
    copy_a.fetch(stage_a(stage));
    copy_b.fetch(stage_b(stage));
  };
  const auto commit = [&](int stage) {
    copy_a.commit(stage_a(stage));
    copy_b.commit(stage_b(stage));
  };

  // The A fragment of mma.sync consists of the 8x8 matrices at (m 0, k 0), (m 8, k 0), (m 0, k 8), (m 8, k 8), in this
  // order. Two B fragments side by side consist of those at (n 0, k 0), (n 0, k 8), (n 8, k 0), (n 8, k 8).
  const uint32_t lane_a = SmemA::lane_offset(warp_m, lane / 8 % 2, lane / 16);
  const uint32_t lane_b = SmemB::lane_offset(warp_n, lane / 16, lane / 8 % 2);
  uint32_t frag_a[2][MI][4];
  uint32_t frag_b[2][NJ][4];
  const auto load_fragments = [&](int buffer, int stage, int step) {
#pragma unroll
    for (int i = 0; i < MI; ++i) SmemA::load(frag_a[buffer][i], stage_a(stage) + SmemA::at(lane_a, i, step));
#pragma unroll
    for (int j = 0; j < NJ; ++j) SmemB::load(frag_b[buffer][j], stage_b(stage) + SmemB::at(lane_b, j, step));
  };

  float acc[MI][2 * NJ][4] = {};
  [[maybe_unused]] float sums[MI][2 * NJ][4] = {};
  [[maybe_unused]] const auto carry = [&] {  // adds the accumulators to the sums, and clears them
#pragma unroll
    for (int i = 0; i < MI * 2 * NJ * 4; ++i) {
      float& x = acc[i / (2 * NJ * 4)][i / 4 % (2 * NJ)][i % 4];
      sums[i / (2 * NJ * 4)][i / 4 % (2 * NJ)][i % 4] += x;
      x = 0.0f;
    }
  };

#pragma unroll
  for (int s = 0; s < STAGES - 1; ++s) {
    fetch(s);
    commit(s);
    ptx::cp_async_commit();
  }
  ptx::cp_async_wait<STAGES - 2>();
  __syncthreads();
  if (k_tiles > 0) load_fragments(0, 0, 0);

  int stage = 0, next_stage = 1, free_stage = STAGES - 1;
  for (int kt = 0; kt < k_tiles; ++kt) {
    // Waits for the next k-tile, a whole k-tile of math before its first fragments are needed. If the wait came later,
    // the barrier would stand between the loads of these fragments and the mma that should hide them. After the barrier
    // no warp reads the previous k-tile any more, so its stage is free.
    ptx::cp_async_wait<STAGES - 3>();
    __syncthreads();
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      load_fragments((step + 1) % 2, step + 1 < kSteps ? stage : next_stage, (step + 1) % kSteps);
      // After the fragment loads: these go through the same queue and are needed first.
      if (step == 0) fetch(free_stage);
#pragma unroll
      for (int j = 0; j < 2 * NJ; ++j) {
#pragma unroll
        for (int ii = 0; ii < MI; ++ii) {
          const int i = j % 2 == 0 ? ii : MI - 1 - ii;  // serpentine order: consecutive columns share an A fragment
          ptx::Mma<T>::m16n8k16(acc[i][j], frag_a[step % 2][i], frag_b[step % 2][j / 2][j % 2 * 2],
                                frag_b[step % 2][j / 2][j % 2 * 2 + 1]);
        }
      }
    }
    commit(free_stage);
    ptx::cp_async_commit();
    if constexpr (Traits::kCarries) {
      if (kt % (kCarriedK / BK) == kCarriedK / BK - 1) carry();
    }
    free_stage = stage;
    stage = next_stage;
    next_stage = next_stage + 1 == STAGES ? 0 : next_stage + 1;
  }
  if constexpr (Traits::kCarries) carry();
  const auto& result = Traits::kCarries ? sums : acc;
  ptx::cp_async_wait<0>();
  __syncthreads();  // the epilogue reuses the stages' shared memory as scratch

  // Each warp rearranges its accumulators through shared memory, as many rows at a time as fit there, so that it stores
  // whole rows.
  constexpr int kRows = Traits::kEpilogueRows, kRow = Traits::kEpilogueRow;
  float* scratch = reinterpret_cast<float*>(smem) + warp * kRows * kRow;  // (kRows, WN + 8)
#pragma unroll
  for (int slice = 0; slice < WM; slice += kRows) {
#pragma unroll
    for (int i = 0; i < kRows / 16; ++i) {
#pragma unroll
      for (int j = 0; j < 2 * NJ; ++j) {
        const float (&v)[4] = result[slice / 16 + i][j];
        float* at = scratch + (i * 16 + lane / 4) * kRow + j * 8 + lane % 4 * 2;
        *reinterpret_cast<float2*>(at) = make_float2(v[0], v[1]);
        *reinterpret_cast<float2*>(at + 8 * kRow) = make_float2(v[2], v[3]);
      }
    }
    __syncwarp();
    tile::emit_slice<T, kRows, WN>(p.epilogue, batch, p.batches, split, m0 + warp_m + slice, n0 + warp_n, scratch,
                                   kRow);
    __syncwarp();
  }
}

/// Adds the partial sums of a split-K launch in the order of the slices and applies the epilogue. One thread per eight
/// consecutive columns of a row. Launched with 256 threads per block.
template <class T>
__global__ void __launch_bounds__(256)
    reduce_splits(const __grid_constant__ tile::EpilogueParams e, int splits, int64_t batches) {
  const int64_t groups = (e.n + 7) / 8;
  const int64_t id = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (id >= batches * e.m * groups) return;
  const int64_t row_id = id / groups, col = (id - row_id * groups) * 8;
  const int64_t batch = row_id / e.m, row = row_id - batch * e.m;
  const tile::Span span{0, static_cast<int>(min(e.n - col, static_cast<int64_t>(8)))};
  float acc[8] = {};
  for (int s = 0; s < splits; ++s) {
    const float* src = e.partial + ((s * batches + batch) * e.m + row) * e.n + col;
    tile::add_scaled(acc, src, 1, span, e.n % 4 == 0, 1.0f);
  }
  tile::finish<T>(e, tile::batch_offset(e, batch), row, col, span, true, acc);
}

}  // namespace hgemm::sm80_mma
