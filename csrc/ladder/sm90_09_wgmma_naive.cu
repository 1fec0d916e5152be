// Hopper's wgmma: a warpgroup multiplies (64, BN) at a time straight out of shared memory, which one thread fills by
// TMA, one box of the tensor per copy.
// Changes from 08: registers hold only accumulators, no fragments. The kernel computes no addresses and no predicates,
// since the tensor map knows the extents. There is one buffer: copy, wait, multiply, wait. Accumulators are float32,
// which cost wgmma nothing.
// Expected: the speed of the mma steps without any of their effort. Nothing overlaps but the five blocks of an SM.
// Source: PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions", "cp.async.bulk.tensor".
#include "ladder/ladder.h"
#include "ladder/sm90_09_wgmma.cuh"

namespace hgemm::ladder {

#ifndef HGEMM_NO_SM90A

namespace {

template <class Line>
__global__ void __launch_bounds__(Line::THREADS) wgmma_naive(const __grid_constant__ TmaGemm g) {
  extern __shared__ __align__(1024) unsigned char smem[];  // A, B, barrier
  const uint32_t tiles = ptx::smem_addr(smem), bar = tiles + Line::kStageBytes;
  const tile::TileCoord tile = tile_at<Line::BM>(g, blockIdx.x);
  const int row = tile.m * Line::BM, col = tile.n * Line::BN;
  if (threadIdx.x == 0) {
    ptx::mbarrier_init(bar, 1);
    ptx::fence_mbarrier_init();
  }
  __syncthreads();
  float acc[Line::BN / 2];
  uint32_t parity = 0;
  for (int k = 0; k < g.k; k += Line::BK, parity ^= 1) {
    if (threadIdx.x == 0) load_tiles<Line>(g, tiles, bar, row, col, k);
    ptx::mbarrier_wait(bar, parity);
    multiply_stage<Line>(acc, tiles, 0, k > 0);
    ptx::wgmma_wait<0>();
    __syncthreads();  // before the next tile overwrites this one
  }
  ptx::wgmma_pin(acc);
  store_sums<Line::BN>(g, acc, row, col);
}

}  // namespace

#define WGMMA_NAIVE(NAME, ...)                                                                         \
  WGMMA_LINE(NAME, __VA_ARGS__);                                                                       \
  Status launch_##NAME(const StepProblem& p, Stream stream) {                                          \
    static_assert(Line_##NAME::kWarpgroups == 1 && Line_##NAME::SMEM == Line_##NAME::kStageBytes + 8); \
    return launch_tma<Line_##NAME>(wgmma_naive<Line_##NAME>, p, kEveryTile, stream);                   \
  }

#else

#define WGMMA_NAIVE(...) WGMMA_NOT_BUILT(__VA_ARGS__)

#endif

#include "ladder/variants.inc"

}  // namespace hgemm::ladder
