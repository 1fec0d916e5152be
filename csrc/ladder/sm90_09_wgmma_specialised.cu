// Warp specialisation: a producer warpgroup copies, and the consumer warpgroups only multiply. They synchronise at two
// barriers per stage, full and empty, and never at a barrier of the whole block.
// Changes: the producer runs ahead as far as the ring allows, and gives its registers to the consumers (setmaxnreg).
// cluster2: two blocks, one below the other in D, need the same B, so each loads one half of it for both (multicast).
// persistent: the grid has as many blocks as fit on the GPU, and each block loops over tiles, so that the ring fills
// for the next tile under the epilogue.
// Expected: 1.05 to 1.1 each. kernels/sm90_wgmma/kernel.cuh goes on from here: pingpong consumers, any layout, TMA
// stores.
// Source: CUTLASS 3, "Warp-specialised kernel designs"; PTX ISA, "cp.async.bulk.tensor .multicast::cluster".
#include "ladder/ladder.h"
#include "ladder/sm90_09_wgmma.cuh"
#include "tile/ring.cuh"

namespace hgemm::ladder {

#ifndef HGEMM_NO_SM90A

namespace {

/// The first row and column of D that block `rank` writes, of the cluster that owns cluster tile `id`.
template <class Line>
__device__ __forceinline__ tile::TileCoord corner_of(const TmaGemm& g, uint32_t id, uint32_t rank) {
  const tile::TileCoord tile = tile_at<Line::BM * Line::CLUSTER>(g, id);
  return {(tile.m * Line::CLUSTER + static_cast<int>(rank)) * Line::BM, tile.n * Line::BN};
}

/// Starts the block's share of its cluster's loads: its own rows of A, and its part of B, which every block of the
/// cluster receives.
template <class Line>
__device__ __forceinline__ void load_share(const TmaGemm& g, uint32_t stage, uint32_t bar, tile::TileCoord corner,
                                           int k, uint32_t rank) {
  if constexpr (Line::CLUSTER == 1) {
    load_tiles<Line>(g, stage, bar, corner.m, corner.n, k);
  } else {
    constexpr int kShare = Line::BN / Line::CLUSTER;
    constexpr uint16_t kEveryBlock = (1 << Line::CLUSTER) - 1;
    ptx::mbarrier_arrive_expect_tx(bar, Line::kStageBytes);
    ptx::tma_load(stage, &g.a, bar, {k, corner.m, 0, 0});
    const int first = static_cast<int>(rank) * kShare;
#pragma unroll
    for (int n = first; n < first + kShare; n += 64) {
      ptx::tma_load_multicast(stage + Line::kBytesA + n * 128, &g.b, bar, {corner.n + n, k, 0, 0}, kEveryBlock);
    }
  }
}

template <class Line>
__global__ void __launch_bounds__(Line::THREADS, 1) wgmma_specialised(const __grid_constant__ TmaGemm g) {
  constexpr int STAGES = Line::STAGES, CLUSTER = Line::CLUSTER, kConsumers = Line::kWarpgroups;
  extern __shared__ __align__(1024) unsigned char smem[];  // STAGES x { A, B }, full barriers, empty barriers
  const uint32_t ring = ptx::smem_addr(smem), full = ring + STAGES * Line::kStageBytes, empty = full + STAGES * 8;
  const uint32_t rank = ptx::cluster_rank();
  const int warpgroup = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 128, 0);
  if (threadIdx.x == 0) {
    for (int s = 0; s < STAGES; ++s) {
      ptx::mbarrier_init(full + s * 8, 1);
      ptx::mbarrier_init(empty + s * 8, kConsumers * 4 * CLUSTER);  // one per warp that reads this block's loads
    }
    ptx::fence_mbarrier_init();
  }
  ptx::cluster_sync();

  tile::Ring<STAGES> at;
  const uint32_t tiles = g.tiles_m * g.tiles_n;  // cluster tiles
  const uint32_t first = blockIdx.x / CLUSTER, stride = gridDim.x / CLUSTER;
  if (warpgroup == kConsumers) {
    ptx::release_registers<24>();
    if (threadIdx.x == kConsumers * 128) {
      for (uint32_t id = first; id < tiles; id += stride) {
        const tile::TileCoord corner = corner_of<Line>(g, id, rank);
        for (int k = 0; k < g.k; k += Line::BK, at.advance()) {
          ptx::mbarrier_wait(empty + at.stage * 8, at.parity ^ 1);
          load_share<Line>(g, ring + at.stage * Line::kStageBytes, full + at.stage * 8, corner, k, rank);
        }
      }
    }
    __syncwarp();
  } else {
    ptx::claim_registers<240>();
    const int lane = threadIdx.x % 32;
    const auto release = [&](uint32_t stage) {
      if (lane < CLUSTER) ptx::mbarrier_arrive_cluster(empty + stage * 8, lane);
    };
    float acc[Line::BN / 2];
    for (uint32_t id = first; id < tiles; id += stride) {
      uint32_t previous = 0;
      for (int k = 0; k < g.k; k += Line::BK, at.advance()) {
        ptx::mbarrier_wait(full + at.stage * 8, at.parity);
        multiply_stage<Line>(acc, ring + at.stage * Line::kStageBytes, warpgroup, k > 0);
        ptx::wgmma_wait<1>();
        if (k > 0) release(previous);
        previous = at.stage;
      }
      ptx::wgmma_wait<0>();
      release(previous);
      ptx::wgmma_pin(acc);
      const tile::TileCoord corner = corner_of<Line>(g, id, rank);
      store_sums<Line::BN>(g, acc, corner.m + warpgroup * 64, corner.n);
    }
  }
  ptx::cluster_sync();  // a block must outlive its peer's multicasts and arrivals
}

Status sm_count(int* count) {
  int device = 0;
  if (const cudaError_t e = cudaGetDevice(&device); e != cudaSuccess) return e;
  return cudaDeviceGetAttribute(count, cudaDevAttrMultiProcessorCount, device);
}

template <class Line>
Status launch_specialised(const Problem& p, uint32_t blocks, Stream stream) {
  static_assert(Line::SMEM == Line::STAGES * (Line::kStageBytes + 16));
  static_assert(Line::THREADS == (Line::kWarpgroups + 1) * 128);
  return launch_tma<Line>(wgmma_specialised<Line>, p, blocks, stream);
}

template <class Line>
Status launch_persistent(const Problem& p, Stream stream) {
  int blocks = 0;
  if (const Status e = sm_count(&blocks); e != cudaSuccess) return e;
  return launch_specialised<Line>(p, static_cast<uint32_t>(blocks), stream);
}

}  // namespace

#define WGMMA_SPECIALISED(NAME, ...)                               \
  WGMMA_LINE(NAME, __VA_ARGS__);                                   \
  Status launch_##NAME(const StepProblem& p, Stream stream) {      \
    return launch_specialised<Line_##NAME>(p, kEveryTile, stream); \
  }
#define WGMMA_PERSISTENT(NAME, ...)                           \
  WGMMA_LINE(NAME, __VA_ARGS__);                              \
  Status launch_##NAME(const StepProblem& p, Stream stream) { \
    return launch_persistent<Line_##NAME>(p, stream);         \
  }

#else

#define WGMMA_SPECIALISED(...) WGMMA_NOT_BUILT(__VA_ARGS__)
#define WGMMA_PERSISTENT(...) WGMMA_NOT_BUILT(__VA_ARGS__)

#endif

#include "ladder/variants.inc"

}  // namespace hgemm::ladder
