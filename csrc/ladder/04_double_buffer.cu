// Step 4: double buffering. The loads of slice i + 1 are in flight while slice i is multiplied, and land in the other
// of two buffers. There is one barrier per slice instead of two, and a thread has BK * TM * TN FMAs that hide the
// latency of global memory.
// Variants: k16 and k32 take longer slices, hence fewer iterations. t_8x16 and t_16x8 do more FMAs per word with fewer
// threads. _async copies B's slice by cp.async, without registers in between; A's slice is transposed and still passes
// through registers. _splat stores half2(x, x) in A's slice.
// Expected: +5 to +20 % over step 3.
// Source: NVIDIA, "CUTLASS: Fast Linear Algebra in CUDA C++" (software pipelining); CUDA C++ Programming Guide,
// "Asynchronous Data Copies".
#include <cuda_runtime.h>

#include "ladder/ladder.h"
#include "ladder/thread_tile.cuh"

namespace hgemm::ladder {
namespace {

template <class Tiling, template <class, int, class> class CopyB>
__global__ void __launch_bounds__(Tiling::kThreads, Tiling::blocks_per_sm(Tiling::kSums + Tiling::kStaged))
    double_buffer(Product<typename Tiling::T> g) {
  __shared__ typename Tiling::Slices slices[2];
  const Corner corner = block_corner<Tiling::BM, Tiling::BN>(g);
  Staged<typename Tiling::SliceA, Tiling::kWidthA, Tiling> a(g.a, g.lda, corner.m, 0, g.m, g.k, g.wide_a);
  CopyB<typename Tiling::SliceB, Tiling::kWidthB, Tiling> b(g.b, g.ldb, 0, corner.n, g.k, g.n, g.wide_b);
  ThreadTile<Tiling> tile = thread_tile_of_block<Tiling>();

  a.fetch(slices[0].a);
  b.fetch(slices[0].b);
  a.commit(slices[0].a);
  b.commit(slices[0].b);
  __syncthreads();
  int current = 0;
  for (int k = Tiling::BK; k < g.k; k += Tiling::BK) {
    const int next = current ^ 1;
    a.advance(0, Tiling::BK);
    b.advance(Tiling::BK, 0);
    a.fetch(slices[next].a);
    b.fetch(slices[next].b);
    tile.multiply_slices(slices[current]);
    // The stores come after the FMAs because a warp issues in order, and a store waits for its load.
    a.commit(slices[next].a);
    b.commit(slices[next].b);
    // One barrier covers both directions: `next` is complete, and no thread still reads `current`.
    __syncthreads();
    current = next;
  }
  tile.multiply_slices(slices[current]);  // the last slice, whichever buffer it is in
  tile.store(g, corner);
}

}  // namespace

#define DBUF(NAME, DTYPE, ACC, UNIT, BM, BN, BK, STAGES, THREADS, SMEM, SWIZZLES, COPY_B, TM, TN, WIDTH, PAD, ORDER_A) \
  constexpr Shape kShape_##NAME = {BM, BN, BK, TM, TN, WIDTH, WIDTH, PAD, ORDER_A};                                    \
  Status launch_##NAME(const StepProblem& p, Stream stream) {                                                          \
    using Rung = Tiling<Element<DType::k##DTYPE, Arithmetic::kAccumulate##ACC>, kShape_##NAME>;                        \
    static_assert(Rung::kThreads == THREADS && sizeof(Rung::Slices) * STAGES == SMEM, "variants.inc: " #NAME);         \
    return launch_tiles<Rung>(double_buffer<Rung, COPY_B>, p, 0, stream);                                              \
  }
#include "ladder/variants.inc"

}  // namespace hgemm::ladder
