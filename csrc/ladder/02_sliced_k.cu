// Step 2: a block walks K in slices of 32 and stages each slice of A and B in shared memory, so that 32 threads use a
// global load instead of one. A thread still owns one element of C and reads two words per FMA, now from shared memory.
// Expected: a gain far below 32x, since L1 already caught most of the reuse and the load/store units stay the limit.
// Source: NVIDIA, CUDA C++ Programming Guide, matrix multiplication with shared memory.
#include <cuda_runtime.h>

#include "ladder/cuda_core.cuh"
#include "ladder/element.cuh"
#include "ladder/ladder.h"

namespace hgemm::ladder {
namespace {

constexpr int kSide = 32;  // side of the tile of C and of both slices

template <class E>
__global__ void __launch_bounds__(kSide* kSide) sliced_k(Product<typename E::T> g) {
  using T = typename E::T;
  using Sum = typename E::Sum;
  __shared__ T a[kSide][kSide];  // (m, k)
  __shared__ T b[kSide][kSide];  // (k, n)

  const Corner corner = block_corner<kSide, kSide>(g);
  const int row = threadIdx.x / kSide, col = threadIdx.x % kSide;
  const int m = corner.m + row, n = corner.n + col;
  Sum sum = 0.0f;
  for (int k0 = 0; k0 < g.k; k0 += kSide) {
    // Threads outside C do not return early: they load for the others, and all threads must reach the barriers.
    const bool in_a = m < g.m && k0 + col < g.k, in_b = k0 + row < g.k && n < g.n;
    a[row][col] = in_a ? g.a[m * g.lda + k0 + col] : T(0.0f);
    b[row][col] = in_b ? g.b[(k0 + row) * g.ldb + n] : T(0.0f);
    __syncthreads();
#pragma unroll
    for (int k = 0; k < kSide; ++k) sum = mul_add(static_cast<Sum>(a[row][k]), static_cast<Sum>(b[k][col]), sum);
    __syncthreads();
  }
  if (m < g.m && n < g.n) g.d[static_cast<int64_t>(m) * g.n + n] = sum;
}

template <class E>
Status launch(const Problem& p, Stream stream) {
  const auto g = product_of<typename E::T>(p, {1, 1, 1});
  return enqueue(sliced_k<E>, grid_of<kSide, kSide>(p), kSide * kSide, 0, static_cast<cudaStream_t>(stream), g);
}

}  // namespace

#define SLICED_K(NAME, DTYPE, ACC, ...)                                               \
  Status launch_##NAME(const StepProblem& p, Stream stream) {                         \
    return launch<Element<DType::k##DTYPE, Arithmetic::kAccumulate##ACC>>(p, stream); \
  }
#include "ladder/variants.inc"

}  // namespace hgemm::ladder
