// Step 3: a thread owns TM x TN elements of C. A column of A and a row of B, which are TM + TN words from shared
// memory, now feed TM * TN FMAs: 4 FMAs per word at 8x8, where step 2 had half an FMA per word.
// Variants: f16x4, f16x4_pack and f16x8_pack move 4, 8 and 16 bytes per access. _bcf stores A's slice transposed, so
// that a thread's rows form one vector, and splits the thread tile into groups, so that the lanes of a warp read
// neighbouring vectors. _offset pads rows, which spreads the transposing stores over the banks.
// Expected: the largest gain of the ladder.
// Source: V. Volkov, J. Demmel, "Benchmarking GPUs to Tune Dense Linear Algebra" (2008); NVIDIA, "CUTLASS: Fast Linear
// Algebra in CUDA C++".
#include <cuda_runtime.h>

#include "ladder/ladder.h"
#include "ladder/thread_tile.cuh"

namespace hgemm::ladder {
namespace {

template <class Tiling>
__global__ void __launch_bounds__(Tiling::kThreads, Tiling::blocks_per_sm(Tiling::kSums + Tiling::kStaged))
    thread_tile(Product<typename Tiling::T> g) {
  __shared__ typename Tiling::Slices slices;
  const Corner corner = block_corner<Tiling::BM, Tiling::BN>(g);
  Staged<typename Tiling::SliceA, Tiling::kWidthA, Tiling> a(g.a, g.lda, corner.m, 0, g.m, g.k, g.wide_a);
  Staged<typename Tiling::SliceB, Tiling::kWidthB, Tiling> b(g.b, g.ldb, 0, corner.n, g.k, g.n, g.wide_b);
  ThreadTile<Tiling> tile = thread_tile_of_block<Tiling>();

  for (int k = 0; k < g.k; k += Tiling::BK) {
    a.fetch(slices.a);
    b.fetch(slices.b);
    a.commit(slices.a);
    b.commit(slices.b);
    a.advance(0, Tiling::BK);
    b.advance(Tiling::BK, 0);
    __syncthreads();
    tile.multiply_slices(slices);
    __syncthreads();
  }
  tile.store(g, corner);
}

}  // namespace

#define THREAD_TILE(NAME, DTYPE, ACC, UNIT, BM, BN, BK, STAGES, THREADS, SMEM, SWIZZLES, ...)                  \
  constexpr Shape kShape_##NAME = {BM, BN, BK, __VA_ARGS__};                                                   \
  Status launch_##NAME(const StepProblem& p, Stream stream) {                                                  \
    using Rung = Tiling<Element<DType::k##DTYPE, Arithmetic::kAccumulate##ACC>, kShape_##NAME>;                \
    static_assert(Rung::kThreads == THREADS && sizeof(Rung::Slices) * STAGES == SMEM, "variants.inc: " #NAME); \
    return launch_tiles<Rung>(thread_tile<Rung>, p, 0, stream);                                                \
  }
#include "ladder/variants.inc"

}  // namespace hgemm::ladder
