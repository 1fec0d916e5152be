// Kernel arguments and launch helpers of the CUDA-core GEMM steps.
#pragma once

#include <cstdint>

#include <cuda_runtime.h>

#include "core/launch.cuh"
#include "core/problem.h"

namespace hgemm::ladder {

/// The GEMM D = A @ B as a kernel takes it. All matrices are row-major, and D is contiguous. `wide_x`: each row of
/// matrix x consists of whole aligned vectors of the kernel's width (Widths).
template <class T>
struct Product {
  const T* a;  // (m, k)
  const T* b;  // (k, n)
  T* d;        // (m, n)
  int m, n, k;
  int64_t lda, ldb;
  bool wide_a, wide_b, wide_d;
};

/// Elements per memory access to each matrix.
struct Widths {
  int a, b, d;
};

template <class T>
bool rows_are_packs(const void* data, int64_t row_stride, int64_t cols, int width) {
  return reinterpret_cast<uintptr_t>(data) % (width * sizeof(T)) == 0 && row_stride % width == 0 && cols % width == 0;
}

template <class T>
Product<T> product_of(const Problem& p, Widths widths) {
  return {static_cast<const T*>(p.a.data),
          static_cast<const T*>(p.b.data),
          static_cast<T*>(p.d.data),
          static_cast<int>(p.m),
          static_cast<int>(p.n),
          static_cast<int>(p.k),
          p.a.row_stride,
          p.b.row_stride,
          rows_are_packs<T>(p.a.data, p.a.row_stride, p.k, widths.a),
          rows_are_packs<T>(p.b.data, p.b.row_stride, p.n, widths.b),
          rows_are_packs<T>(p.d.data, p.n, p.n, widths.d)};
}

constexpr __host__ __device__ int ceil_div(int a, int b) {
  return a / b + (a % b != 0);
}

/// The number of tiles of C, one block each. The grid is one-dimensional because gridDim.y ends at 65535.
template <int BM, int BN>
unsigned grid_of(const Problem& p) {
  return static_cast<unsigned>(ceil_div(static_cast<int>(p.m), BM)) * ceil_div(static_cast<int>(p.n), BN);
}

/// First row and column of this block's (BM, BN) tile of C. Consecutive blocks take neighbouring tiles of one row of
/// tiles.
struct Corner {
  int m, n;
};
template <int BM, int BN, class T>
__device__ __forceinline__ Corner block_corner(const Product<T>& g) {
  const unsigned across = ceil_div(g.n, BN);
  return {static_cast<int>(blockIdx.x / across) * BM, static_cast<int>(blockIdx.x % across) * BN};
}

}  // namespace hgemm::ladder
