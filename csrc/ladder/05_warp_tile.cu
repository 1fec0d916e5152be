// Step 5: a warp tile between the block tile and the thread tile. The 32 lanes of a warp form a grid that is nearly
// square, so that a warp reads fewer bytes of a slice than with 16 x 2 lanes.
// Both operands arrive by cp.async in a ring of STAGES slices. A is copied in 4-byte chunks, which transposes it
// without registers and needs no alignment. The fragments of step k + 1 are read while those of step k are multiplied,
// also across the boundary between two slices.
// Expected: the FMA units are the limit, close to cuBLAS.
// Source: NVIDIA, "CUTLASS: Fast Linear Algebra in CUDA C++" (warp tiles, pipelining of shared memory and registers).
#include <cuda_runtime.h>

#include "ladder/ladder.h"
#include "ladder/thread_tile.cuh"

namespace hgemm::ladder {
namespace {

template <class Tiling, int STAGES>
__global__ void __launch_bounds__(Tiling::kThreads, Tiling::blocks_per_sm(Tiling::kSums))
    warp_tile(Product<typename Tiling::T> g) {
  static_assert(Tiling::kWarpTiles && Tiling::BK % 2 == 0);  // the two fragments alternate, across slices too
  extern __shared__ __align__(16) unsigned char shared[];
  auto* slices = reinterpret_cast<typename Tiling::Slices*>(shared);  // [STAGES]
  const Corner corner = block_corner<Tiling::BM, Tiling::BN>(g);
  Async<typename Tiling::SliceA, 1, Tiling> a(g.a, g.lda, corner.m, 0, g.m, g.k, true);
  Async<typename Tiling::SliceB, Tiling::kWidthB, Tiling> b(g.b, g.ldb, 0, corner.n, g.k, g.n, g.wide_b);
  ThreadTile<Tiling> tile = thread_tile_of_block<Tiling>();

  // Slices beyond the last one are filled with zeros. One fragment of them is read, and none is multiplied.
  const auto fetch_next = [&](int slot) {
    a.fetch(slices[slot].a);
    b.fetch(slices[slot].b);
    a.advance(0, Tiling::BK);
    b.advance(Tiling::BK, 0);
    ptx::cp_async_commit();
  };
  const auto wait_for_oldest = [] {
    ptx::cp_async_wait<STAGES - 2>();
    __syncthreads();
  };

#pragma unroll
  for (int slot = 0; slot < STAGES - 1; ++slot) fetch_next(slot);
  wait_for_oldest();
  typename ThreadTile<Tiling>::Fragment fragment[2];
  tile.read(fragment[0], slices[0], 0);
  int reading = 0, writing = STAGES - 1;
  for (int k0 = 0; k0 < g.k; k0 += Tiling::BK) {
    fetch_next(writing);
#pragma unroll
    for (int k = 0; k < Tiling::BK; ++k) {
      const int next = (k + 1) % Tiling::BK;
      if (next == 0) {
        // After this barrier every thread also has its last fragment of `reading`, which is filled next.
        wait_for_oldest();
        writing = reading;
        reading = reading + 1 == STAGES ? 0 : reading + 1;
      }
      tile.read(fragment[(k + 1) % 2], slices[reading], next);
      tile.multiply(fragment[k % 2]);
    }
  }
  ptx::cp_async_wait_all();
  tile.store(g, corner);
}

template <class Tiling, int STAGES>
Status launch(const Problem& p, Stream stream) {
  constexpr int kBytes = sizeof(typename Tiling::Slices) * STAGES;
  constexpr auto kernel = warp_tile<Tiling, STAGES>;
  if (const cudaError_t e = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes)) return e;
  return launch_tiles<Tiling>(kernel, p, kBytes, stream);
}

}  // namespace

#define WARP_TILE(NAME, DTYPE, ACC, UNIT, BM, BN, BK, STAGES, THREADS, SMEM, SWIZZLES, TM, TN, WM, WN)         \
  constexpr Shape kShape_##NAME = {BM, BN, BK, TM, TN, 4, 4, 4, kCol, WM, WN};                                 \
  Status launch_##NAME(const StepProblem& p, Stream stream) {                                                  \
    using Rung = Tiling<Element<DType::k##DTYPE, Arithmetic::kAccumulate##ACC>, kShape_##NAME>;                \
    static_assert(Rung::kThreads == THREADS && sizeof(Rung::Slices) * STAGES == SMEM, "variants.inc: " #NAME); \
    return launch<Rung, STAGES>(p, stream);                                                                    \
  }
#include "ladder/variants.inc"

}  // namespace hgemm::ladder
