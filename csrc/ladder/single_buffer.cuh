// The tiled loop with one buffer: fetch, barrier, multiply, barrier. Traits::Warp defines what a warp does with a tile.
#pragma once

#include "ladder/tensor_core.cuh"

namespace hgemm::ladder {

template <class Traits, Fetch kFetch>
__global__ void __launch_bounds__(Traits::kThreads) single_buffer(const __grid_constant__ Gemm g) {
  using ShapeA = typename Traits::ShapeA;
  using ShapeB = typename Traits::ShapeB;
  unsigned char* const tile_a = block_memory<Traits>();   // (BM, BK)
  unsigned char* const tile_b = tile_a + ShapeA::kBytes;  // (BK, BN)
  const tile::TileCoord tile = panel_raster(blockIdx.x, g.tiles_m, g.tiles_n, g.panel);
  const int row = tile.m * Traits::BM, col = tile.n * Traits::BN;
  TileFetch<ShapeA, kFetch> fetch_a(g.a, g.lda, row, 0, g.m, g.k);
  TileFetch<ShapeB, kFetch> fetch_b(g.b, g.ldb, 0, col, g.k, g.n);
  typename Traits::Warp warp;

  for (int k = 0; k < g.k; k += Traits::BK) {
    fetch_a(ptx::smem_addr(tile_a));
    fetch_b(ptx::smem_addr(tile_b));
    ptx::cp_async_commit();
    ptx::cp_async_wait<0>();
    __syncthreads();
    warp.multiply(tile_a, tile_b);
    __syncthreads();  // before the next tile overwrites this one
  }
  warp.store(g, row, col, tile_a);
}

}  // namespace hgemm::ladder
