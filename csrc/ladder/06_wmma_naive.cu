// Tensor cores through WMMA: a warp multiplies 16x16x16 fragments of float16, and a block is one warp that computes one
// fragment of D.
// Changes: the FMA loops of the previous steps become one instruction of a whole warp, whose lanes hold the registers
// of a fragment jointly.
// Cost: every fragment comes straight from global memory (through L1 and L2). That is 16 FLOPs per byte, and warps
// reuse nothing from each other.
// Expected: a few times 01_naive, far from the tensor cores' peak.
// Source: CUDA C++ Programming Guide, "Warp Matrix Functions".
#include "ladder/ladder.h"
#include "ladder/wmma_warp.cuh"

namespace hgemm::ladder {
namespace {

constexpr int kFragment = 16;

/// Loads the 16x16 fragment at (row, col). If `direct`, a fragment that lies wholly inside the matrix is loaded
/// straight from it. Any other fragment goes through `scratch`, with zeros for elements outside the matrix.
template <class Fragment>
__device__ __forceinline__ void load_fragment(Fragment& fragment, const __half* matrix, int64_t ld, int row, int col,
                                              int rows, int cols, bool direct, __half* scratch) {
  const __half* from = matrix + row * ld + col;
  if (direct && row + kFragment <= rows && col + kFragment <= cols) {
    nvcuda::wmma::load_matrix_sync(fragment, from, static_cast<unsigned>(ld));
    return;
  }
  for (int i = threadIdx.x; i < kFragment * kFragment; i += 32) {
    const int r = i / kFragment, c = i % kFragment;
    scratch[i] = row + r < rows && col + c < cols ? from[r * ld + c] : __float2half(0.0f);
  }
  __syncwarp();
  nvcuda::wmma::load_matrix_sync(fragment, scratch, kFragment);
  __syncwarp();
}

__global__ void __launch_bounds__(32) wmma_naive(const __grid_constant__ Gemm g, bool direct_a, bool direct_b) {
  __shared__ __align__(32) __half scratch[kFragment * kFragment];
  const tile::TileCoord tile = panel_raster(blockIdx.x, g.tiles_m, g.tiles_n, g.panel);
  const int row = tile.m * kFragment, col = tile.n * kFragment;
  using namespace nvcuda::wmma;
  fragment<matrix_a, kFragment, kFragment, kFragment, __half, row_major> a;
  fragment<matrix_b, kFragment, kFragment, kFragment, __half, row_major> b;
  fragment<accumulator, kFragment, kFragment, kFragment, __half> acc;
  fill_fragment(acc, __float2half(0.0f));
  for (int k = 0; k < g.k; k += kFragment) {
    load_fragment(a, g.a, g.lda, row, k, g.m, g.k, direct_a, scratch);
    load_fragment(b, g.b, g.ldb, k, col, g.k, g.n, direct_b, scratch);
    mma_sync(acc, a, b, acc);
  }
  store_fragment<kFragment, kFragment>(g, acc, row, col, scratch);
}

/// True if WMMA can load from the matrix itself: it needs an address on 32 bytes and rows that start on 16 bytes.
bool is_direct(const Matrix& x) {
  return is_aligned(x.data, 32) && x.row_stride % 8 == 0 && x.row_stride <= kMaxFragmentStride;
}

Status launch(const Problem& p, Stream stream) {
  const Gemm g = gemm_of(p, kFragment, kFragment, p.n);
  const bool direct_a = is_direct(p.a), direct_b = is_direct(p.b);
  return enqueue(wmma_naive, g.tiles_m * g.tiles_n, 32, 0, static_cast<cudaStream_t>(stream), g, direct_a, direct_b);
}

}  // namespace

#define WMMA_NAIVE(NAME, ...)                                 \
  Status launch_##NAME(const StepProblem& p, Stream stream) { \
    return launch(p, stream);                                 \
  }
#include "ladder/variants.inc"

}  // namespace hgemm::ladder
