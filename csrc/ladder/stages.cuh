// The tiled loop over a ring of STAGES buffers: while one tile is multiplied, STAGES - 1 tiles are in flight. With two
// stages this is double buffering. One barrier per tile is enough: after it, the tile to read has arrived for every
// thread, and every thread has read the tile before it, whose buffer is filled next.
#pragma once

#include "ladder/tensor_core.cuh"

namespace hgemm::ladder {

template <class Traits, Fetch kFetch>
__global__ void __launch_bounds__(Traits::kThreads) stages(const __grid_constant__ Gemm g) {
  constexpr int STAGES = Traits::STAGES;
  using ShapeA = typename Traits::ShapeA;
  using ShapeB = typename Traits::ShapeB;
  unsigned char* const ring = block_memory<Traits>();  // STAGES x { A (BM, BK), B (BK, BN) }
  const tile::TileCoord tile = panel_raster(blockIdx.x, g.tiles_m, g.tiles_n, g.panel);
  const int row = tile.m * Traits::BM, col = tile.n * Traits::BN;
  TileFetch<ShapeA, kFetch> fetch_a(g.a, g.lda, row, 0, g.m, g.k);
  TileFetch<ShapeB, kFetch> fetch_b(g.b, g.ldb, 0, col, g.k, g.n);
  const int k_tiles = (g.k + Traits::BK - 1) / Traits::BK;
  const auto fetch = [&](int stage, int kt) {
    if (kt < k_tiles) {
      const uint32_t at = ptx::smem_addr(ring) + stage * Traits::kStageBytes;
      fetch_a(at);
      fetch_b(at + ShapeA::kBytes);
    }
    ptx::cp_async_commit();  // an empty group beyond the last tile, so that cp_async_wait counts right
  };
  typename Traits::Warp warp;

#pragma unroll
  for (int s = 0; s < STAGES - 1; ++s) fetch(s, s);
  int stage = 0, free_stage = STAGES - 1;
  for (int kt = 0; kt < k_tiles; ++kt) {
    ptx::cp_async_wait<STAGES - 2>();
    __syncthreads();
    // With two stages the copy can hide only under the math of this tile, so it is issued first. Deeper rings have
    // time, and copies issued ahead of the loads from shared memory delay these loads. Issuing the copies last reaches
    // 0.43 of cuBLAS instead of 0.40 (256x256, 4 stages).
    if (STAGES == 2) fetch(free_stage, kt + 1);
    const unsigned char* at = ring + stage * Traits::kStageBytes;
    warp.multiply(at, at + ShapeA::kBytes);
    if (STAGES > 2) fetch(free_stage, kt + STAGES - 1);
    free_stage = stage;
    stage = stage + 1 == STAGES ? 0 : stage + 1;
  }
  __syncthreads();  // the ring becomes the epilogue's scratch
  warp.store(g, row, col, ring);
}

}  // namespace hgemm::ladder
