// The main loop of sm80_mma: from a block's operands to rows of its output tile. kernel.cuh describes it.
#pragma once

#include "core/problem.h"
#include "kernels/sm80_mma/config.h"
#include "ptx/cp_async.cuh"
#include "ptx/mma.cuh"
#include "ptx/smem_addr.cuh"
#include "tile/smem_operand.cuh"

namespace hgemm::sm80_mma {

/// The compile-time parameters of the kernel: Config, element type, memory orders of A and B.
template <class Config_, class T_, Major kMajorA_, Major kMajorB_, bool kNarrow_>
struct Traits : Config_ {
  using T = T_;
  static constexpr Major kMajorA = kMajorA_, kMajorB = kMajorB_;
  static constexpr bool kNarrow = kNarrow_;  // operands need not consist of whole aligned 16-byte chunks
};

/// The product of which a block computes an output tile: (m, k) by (k, n), for the k from k0 to k1.
template <class T>
struct Operands {
  const T *a, *b;
  int64_t lda, ldb;
  int m, n, k0, k1;
  int k_tiles;          // between k0 and k1
  bool in_slices;       // Carried: the accumulators are added to the sums at the end of each of kSlices slices of K
  bool wide_a, wide_b;  // the operand consists of whole aligned 16-byte chunks
};

/// Computes the output tile at (m0, n0). Each warp calls emit(row, column, scratch) for parts of it: (kEpilogueRows,
/// WN) floats in shared memory, with kEpilogueRow floats per row, whose first element is that of (row, column).
template <class Traits, class Emit>
__device__ __forceinline__ void compute_tile(const Operands<typename Traits::T>& x, int m0, int n0, unsigned char* smem,
                                             Emit emit) {
  using T = typename Traits::T;
  constexpr int BM = Traits::BM, BN = Traits::BN, BK = Traits::BK, WM = Traits::WM, WN = Traits::WN;
  constexpr int STAGES = Traits::STAGES, kSteps = BK / 16, MI = WM / 16, NJ = WN / 16;
  using SmemA = tile::SmemOperand<BM, BK, Traits::kMajorA>;
  using SmemB = tile::SmemOperand<BN, BK, Traits::kMajorB>;
  using CopyA = typename SmemA::template Copy<T, Traits::kThreads, Traits::kNarrow>;
  using CopyB = typename SmemB::template Copy<T, Traits::kThreads, Traits::kNarrow>;
  constexpr bool kKMajorA = SmemA::kIsKMajor, kKMajorB = SmemB::kIsKMajor;

  const uint32_t smem_base = ptx::smem_addr(smem);  // STAGES x { A, B }
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int warp_m = (warp % Traits::kWarpsM) * WM, warp_n = (warp / Traits::kWarpsM) * WN;
  const int k_tiles = x.k_tiles;

  CopyA copy_a(x.a, x.lda, kKMajorA ? m0 : x.k0, kKMajorA ? x.k0 : m0, kKMajorA ? x.m : x.k1, kKMajorA ? x.k1 : x.m,
               x.wide_a);
  CopyB copy_b(x.b, x.ldb, kKMajorB ? n0 : x.k0, kKMajorB ? x.k0 : n0, kKMajorB ? x.n : x.k1, kKMajorB ? x.k1 : x.n,
               x.wide_b);
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
  [[maybe_unused]] float sums[MI][2 * NJ][4];
  if constexpr (Traits::kCarries) {
#pragma unroll
    for (int i = 0; i < MI * 2 * NJ * 4; ++i) {
      sums[i / (2 * NJ * 4)][i / 4 % (2 * NJ)][i % 4] = -0.0f;  // keeps the sign of a zero
    }
  }
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

  constexpr int kStepTiles = kSliceK / BK;
  [[maybe_unused]] const auto slice_end = [&](int slices) {  // the k-tile behind so many slices
    return (k_tiles + kStepTiles - 1) / kStepTiles * slices / kSlices * kStepTiles;
  };
  [[maybe_unused]] int slice = 1, end = x.in_slices ? slice_end(1) : kCarriedK / BK;  // of what the accumulators add up

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
      if (kt + 1 == end) {
        carry();
        end = x.in_slices ? slice_end(++slice) : end + kCarriedK / BK;
      }
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
    emit(m0 + warp_m + slice, n0 + warp_n, scratch);
    __syncwarp();
  }
}

}  // namespace hgemm::sm80_mma
