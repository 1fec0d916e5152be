// A ring of stages between TMA and wgmma: each stage has a barrier that says that it is full, and the wgmma of one
// stage stay in flight.
// Changes: copies run STAGES - 1 tiles ahead. The loop waits for the wgmma of the previous stage, not for those just
// issued, so that the tensor cores find the next wgmma queued. Larger tiles (wg2: two warpgroups, 128 rows; n256: all
// of 256 columns) read fewer bytes per FLOP from L2 and from shared memory.
// Expected: little from the ring alone, where two blocks of an SM replace five; 1.4 times from the tiles.
// Source: PTX ISA, "mbarrier", "wgmma.wait_group"; CUTLASS 3, "sm90 pipelines".
#include "ladder/ladder.h"
#include "ladder/sm90_09_wgmma.cuh"

namespace hgemm::ladder {

#ifndef HGEMM_NO_SM90A

namespace {

template <class Line>
__global__ void __launch_bounds__(Line::THREADS) wgmma_pipeline(const __grid_constant__ TmaGemm g) {
  constexpr int STAGES = Line::STAGES;
  extern __shared__ __align__(1024) unsigned char smem[];  // STAGES x { A, B }, STAGES barriers
  const uint32_t ring = ptx::smem_addr(smem), full = ring + STAGES * Line::kStageBytes;
  const tile::TileCoord tile = tile_at<Line::BM>(g, blockIdx.x);
  const int row = tile.m * Line::BM, col = tile.n * Line::BN, warpgroup = threadIdx.x / 128;
  const int k_tiles = (g.k + Line::BK - 1) / Line::BK;
  const auto fetch = [&](int kt) {
    if (threadIdx.x == 0 && kt < k_tiles) {
      const int stage = kt % STAGES;
      load_tiles<Line>(g, ring + stage * Line::kStageBytes, full + stage * 8, row, col, kt * Line::BK);
    }
  };
  if (threadIdx.x == 0) {
    for (int s = 0; s < STAGES; ++s) ptx::mbarrier_init(full + s * 8, 1);
    ptx::fence_mbarrier_init();
  }
  __syncthreads();
  for (int kt = 0; kt < STAGES - 1; ++kt) fetch(kt);
  float acc[Line::BN / 2];
  for (int kt = 0; kt < k_tiles; ++kt) {
    const int stage = kt % STAGES;
    ptx::mbarrier_wait(full + stage * 8, kt / STAGES % 2);
    multiply_stage<Line>(acc, ring + stage * Line::kStageBytes, warpgroup, kt > 0);
    ptx::wgmma_wait<1>();  // the wgmma of the previous stage have read it
    __syncthreads();
    fetch(kt + STAGES - 1);  // into the previous stage, which is free now
  }
  ptx::wgmma_wait<0>();
  ptx::wgmma_pin(acc);
  store_sums<Line::BN>(g, acc, row + warpgroup * 64, col);
}

}  // namespace

#define WGMMA_PIPELINE(NAME, ...)                                                             \
  WGMMA_LINE(NAME, __VA_ARGS__);                                                              \
  Status launch_##NAME(const StepProblem& p, Stream stream) {                                 \
    static_assert(Line_##NAME::SMEM == Line_##NAME::STAGES * (Line_##NAME::kStageBytes + 8)); \
    static_assert(Line_##NAME::THREADS == Line_##NAME::kWarpgroups * 128);                    \
    return launch_tma<Line_##NAME>(wgmma_pipeline<Line_##NAME>, p, kEveryTile, stream);       \
  }

#else

#define WGMMA_PIPELINE(...) WGMMA_NOT_BUILT(__VA_ARGS__)

#endif

#include "ladder/variants.inc"

}  // namespace hgemm::ladder
