// Fragments are double-buffered in registers: ldmatrix runs one row of fragments (A) and one k16 step (B) ahead of mma,
// also across the boundary between tiles.
// Changes: the next tile must have arrived a whole tile of math early, so that one stage fewer is in flight. No barrier
// lies between an ldmatrix and the mma that uses its fragment. warp4x8 and warp8x8 are larger warp tiles (64x64,
// 128x64), which read shared memory less per FLOP; that saves both time and power.
// Expected: 1.05 times the speed of the stages alone; each larger warp tile is worth another factor of 1.1.
// Source: CUTLASS, "Efficient GEMM in CUDA: Warp-level GEMM, Pipelining".
#include "ladder/ladder.h"
#include "ladder/mma_warp.cuh"

namespace hgemm::ladder {
namespace {

template <class Line>
struct MmaRegisters : Traits<Line> {
  using Base = Traits<Line>;
  using Warp = MmaWarp<Base, Epilogue::kCoalesced>;
  static_assert(Line::STAGES >= 3 && Warp::MI % 2 == 0 && Base::kSteps % 2 == 0);
  static_assert(Line::SMEM == Base::kRingBytes && Base::kThreads / 32 * Warp::kScratchBytes <= Line::SMEM);
};

template <class Traits, Fetch kFetch>
__global__ void __launch_bounds__(Traits::kThreads) register_buffer(const __grid_constant__ Gemm g) {
  constexpr int STAGES = Traits::STAGES, kSteps = Traits::kSteps, MI = Traits::Warp::MI, NJ2 = Traits::Warp::NJ / 2;
  // Copies delay the ldmatrix that are issued behind them. Where one k16 step has enough math, the copies of B are
  // issued in the second step: that reaches 0.65 instead of 0.61 of cuBLAS for warp tiles of 128x64, but 0.49 instead
  // of 0.53 for 64x32. Copies issued one by one between the mma are slower still.
  constexpr int kStepOfB = MI * NJ2 * 2 > 32 ? 1 : 0;
  using ShapeA = typename Traits::ShapeA;
  using ShapeB = typename Traits::ShapeB;
  unsigned char* const memory = block_memory<Traits>();
  const uint32_t ring = ptx::smem_addr(memory);  // STAGES x { A (BM, BK), B (BK, BN) }
  const tile::TileCoord tile = panel_raster(blockIdx.x, g.tiles_m, g.tiles_n, g.panel);
  const int row = tile.m * Traits::BM, col = tile.n * Traits::BN;
  TileFetch<ShapeA, kFetch> fetch_a(g.a, g.lda, row, 0, g.m, g.k);
  TileFetch<ShapeB, kFetch> fetch_b(g.b, g.ldb, 0, col, g.k, g.n);
  const int k_tiles = (g.k + Traits::BK - 1) / Traits::BK;
  typename Traits::Warp warp;
  typename Traits::Warp::FragmentsA a[2];
  typename Traits::Warp::FragmentsB b[2];

#pragma unroll
  for (int s = 0; s < STAGES - 1; ++s) {
    if (s < k_tiles) {
      fetch_a(ring + s * Traits::kStageBytes);
      fetch_b(ring + s * Traits::kStageBytes + ShapeA::kBytes);
    }
    ptx::cp_async_commit();
  }
  ptx::cp_async_wait<STAGES - 2>();
  __syncthreads();
  warp.load_a(a[0], ring, 0, 0);
#pragma unroll
  for (int j = 0; j < NJ2; ++j) warp.load_b(b[0], ring + ShapeA::kBytes, j, 0);

  const uint32_t ring_end = ring + STAGES * Traits::kStageBytes;
  uint32_t current = ring, next = ring + Traits::kStageBytes, vacant = ring_end - Traits::kStageBytes;
  for (int kt = 0; kt < k_tiles; ++kt) {
    ptx::cp_async_wait<STAGES - 3>();  // this thread's copies of the next tile have arrived
    __syncthreads();                   // so have those of all threads, and no thread still reads the previous tile
    const bool more = kt + STAGES - 1 < k_tiles;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const uint32_t ahead = step + 1 < kSteps ? current : next;
#pragma unroll
      for (int i = 0; i < MI; ++i) {
        const bool turn = i + 1 == MI;
        warp.load_a(a[(i + 1) % 2], turn ? ahead : current, (i + 1) % MI, turn ? (step + 1) % kSteps : step);
#pragma unroll
        for (int j = i; j < NJ2; j += MI) {
          warp.load_b(b[(step + 1) % 2], ahead + ShapeA::kBytes, j, (step + 1) % kSteps);
        }
        if (more && i == 0 && step == 0) fetch_a(vacant);
        if (more && i == 0 && step == kStepOfB) fetch_b(vacant + ShapeA::kBytes);
        warp.multiply_row(i, a[i % 2], b[step % 2]);
      }
    }
    ptx::cp_async_commit();
    vacant = current;
    current = next;
    next = next + Traits::kStageBytes == ring_end ? ring : next + Traits::kStageBytes;
  }
  __syncthreads();  // the ring becomes the epilogue's scratch
  warp.store(g, row, col, memory);
}

}  // namespace

#define MMA_REGISTERS(NAME, ...)                                                                                     \
  TENSOR_CORE_LINE(NAME, __VA_ARGS__);                                                                               \
  Status launch_##NAME(const StepProblem& p, Stream stream) {                                                        \
    using T = MmaRegisters<Line_##NAME>;                                                                             \
    return launch_body<T>(register_buffer<T, Fetch::kAsync>, register_buffer<T, Fetch::kElements>, kSwizzles_##NAME, \
                          p, stream);                                                                                \
  }
#include "ladder/variants.inc"

}  // namespace hgemm::ladder
