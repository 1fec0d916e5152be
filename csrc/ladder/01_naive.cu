// Step 1: a thread computes one element of C straight from global memory.
// Every FMA waits for two loads. A warp's loads of B touch one line and its loads of A one word; reuse between threads
// is left to L1 and L2.
// Expected: the load/store units are the limit, at a few percent of the FMA peak.
// Source: NVIDIA, CUDA C++ Programming Guide, matrix multiplication without shared memory.
#include <cuda_runtime.h>

#include "ladder/cuda_core.cuh"
#include "ladder/element.cuh"
#include "ladder/ladder.h"

namespace hgemm::ladder {
namespace {

constexpr int kSide = 32;  // a block's tile of C is square; each warp computes one row of it

template <class E>
__global__ void __launch_bounds__(kSide* kSide) naive(Product<typename E::T> g) {
  using Sum = typename E::Sum;
  const Corner corner = block_corner<kSide, kSide>(g);
  const int m = corner.m + threadIdx.x / kSide, n = corner.n + threadIdx.x % kSide;
  if (m >= g.m || n >= g.n) return;

  const auto* a = g.a + m * g.lda;
  const auto* b = g.b + n;
  Sum sum = 0.0f;
  for (int k = 0; k < g.k; ++k) {
    sum = mul_add(static_cast<Sum>(a[k]), static_cast<Sum>(*b), sum);
    b += g.ldb;
  }
  g.d[static_cast<int64_t>(m) * g.n + n] = sum;
}

template <class E>
Status launch(const Problem& p, Stream stream) {
  const auto g = product_of<typename E::T>(p, {1, 1, 1});
  return enqueue(naive<E>, grid_of<kSide, kSide>(p), kSide * kSide, 0, static_cast<cudaStream_t>(stream), g);
}

}  // namespace

#define NAIVE(NAME, DTYPE, ACC, ...)                                                  \
  Status launch_##NAME(const StepProblem& p, Stream stream) {                         \
    return launch<Element<DType::k##DTYPE, Arithmetic::kAccumulate##ACC>>(p, stream); \
  }
#include "ladder/variants.inc"

}  // namespace hgemm::ladder
