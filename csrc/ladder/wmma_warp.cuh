// A warp tile computed through nvcuda::wmma, with float16 accumulators.
#pragma once

#include <mma.h>

#include "ladder/tensor_core.cuh"

namespace hgemm::ladder {

/// Writes a (ROWS, COLS) fragment to D at (row, col): directly where it fits, else through `scratch`, which holds
/// (ROWS, COLS) elements.
template <int ROWS, int COLS, class Fragment>
__device__ __forceinline__ void store_fragment(const Gemm& g, const Fragment& fragment, int row, int col,
                                               __half* scratch) {
  __half* const d = g.d + static_cast<int64_t>(row) * g.n + col;
  if (g.fragments_fit_d && row + ROWS <= g.m && col + COLS <= g.n) {
    nvcuda::wmma::store_matrix_sync(d, fragment, g.n, nvcuda::wmma::mem_row_major);
    return;
  }
  nvcuda::wmma::store_matrix_sync(scratch, fragment, COLS, nvcuda::wmma::mem_row_major);
  __syncwarp();
  for (int i = threadIdx.x % 32; i < ROWS * COLS; i += 32) {
    const int r = i / COLS, c = i % COLS;
    if (row + r < g.m && col + c < g.n) d[static_cast<int64_t>(r) * g.n + c] = scratch[i];
  }
  __syncwarp();
}

/// Computes a (WM, WN) warp tile from fragments of FRAG_M x FRAG_N x 16. With two BUFFERS the fragments of the next k16
/// step are loaded before the current ones are multiplied.
template <class Traits, int BUFFERS>
class WmmaWarp {
  static constexpr int FRAG_M = Traits::FRAG_M, FRAG_N = Traits::FRAG_N;
  static constexpr int MI = Traits::WM / FRAG_M, NJ = Traits::WN / FRAG_N;
  static constexpr int kPitchA = Traits::ShapeA::Layout::kPitch, kPitchB = Traits::ShapeB::Layout::kPitch;
  template <class Use, class... Order>
  using Fragment = nvcuda::wmma::fragment<Use, FRAG_M, FRAG_N, 16, __half, Order...>;

 public:
  static constexpr int kScratchBytes = FRAG_M * FRAG_N * 2;

  __device__ __forceinline__ WmmaWarp() {
    const int warp = threadIdx.x / 32;
    row_ = warp / Traits::WARPS_N * Traits::WM;
    col_ = warp % Traits::WARPS_N * Traits::WN;
#pragma unroll
    for (int i = 0; i < MI; ++i) {
#pragma unroll
      for (int j = 0; j < NJ; ++j) nvcuda::wmma::fill_fragment(acc_[i][j], __float2half(0.0f));
    }
  }

  /// Accumulates A @ B for the tiles A (BM, BK) and B (BK, BN) in shared memory.
  __device__ __forceinline__ void multiply(const unsigned char* tile_a, const unsigned char* tile_b) {
    const __half* a = reinterpret_cast<const __half*>(tile_a) + row_ * kPitchA;
    const __half* b = reinterpret_cast<const __half*>(tile_b) + col_;
    load(0, a, b);
#pragma unroll
    for (int step = 0; step < Traits::kSteps; ++step) {
      const bool more = step + 1 < Traits::kSteps;
      const __half *next_a = a + (step + 1) * 16, *next_b = b + (step + 1) * 16 * kPitchB;
      if (BUFFERS == 2 && more) load((step + 1) % BUFFERS, next_a, next_b);
#pragma unroll
      for (int i = 0; i < MI; ++i) {
#pragma unroll
        for (int j = 0; j < NJ; ++j) {
          nvcuda::wmma::mma_sync(acc_[i][j], a_[step % BUFFERS][i], b_[step % BUFFERS][j], acc_[i][j]);
        }
      }
      if (BUFFERS == 1 && more) load(0, next_a, next_b);
    }
  }

  /// Writes the warp's results; the block tile starts at (row, col). `scratch`: kScratchBytes for each warp.
  __device__ __forceinline__ void store(const Gemm& g, int row, int col, unsigned char* scratch) {
    __half* own = reinterpret_cast<__half*>(scratch + threadIdx.x / 32 * kScratchBytes);
#pragma unroll
    for (int i = 0; i < MI; ++i) {
#pragma unroll
      for (int j = 0; j < NJ; ++j) {
        store_fragment<FRAG_M, FRAG_N>(g, acc_[i][j], row + row_ + i * FRAG_M, col + col_ + j * FRAG_N, own);
      }
    }
  }

 private:
  __device__ __forceinline__ void load(int buffer, const __half* a, const __half* b) {
#pragma unroll
    for (int i = 0; i < MI; ++i) nvcuda::wmma::load_matrix_sync(a_[buffer][i], a + i * FRAG_M * kPitchA, kPitchA);
#pragma unroll
    for (int j = 0; j < NJ; ++j) nvcuda::wmma::load_matrix_sync(b_[buffer][j], b + j * FRAG_N, kPitchB);
  }

  int row_, col_;  // of the warp tile in the block tile
  Fragment<nvcuda::wmma::matrix_a, nvcuda::wmma::row_major> a_[BUFFERS][MI];
  Fragment<nvcuda::wmma::matrix_b, nvcuda::wmma::row_major> b_[BUFFERS][NJ];
  Fragment<nvcuda::wmma::accumulator> acc_[MI][NJ];
};

}  // namespace hgemm::ladder
