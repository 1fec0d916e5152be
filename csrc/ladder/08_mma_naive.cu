// mma.sync, the instruction under WMMA: a warp computes a 16x8 tile of D. Each lane reads the elements of its fragments
// one by one from global memory, at the positions that the PTX ISA gives.
// Changes from 06_wmma_naive: only the instruction. The layout of fragments, which WMMA hides, is explicit.
// Expected: slower than 06_wmma_naive, since two-byte loads do the work of ldmatrix.
// Source: PTX ISA, "Matrix Fragments for mma.m16n8k16 with floating point type".
#include "ladder/ladder.h"
#include "ladder/mma_warp.cuh"

namespace hgemm::ladder {
namespace {

/// Returns the elements (row, col) and (row + next_row, col + next_col) as the low and the high 16 bits of a register;
/// elements outside the matrix are zero.
__device__ __forceinline__ uint32_t load_pair(const __half* matrix, int64_t ld, int row, int col, int rows, int cols,
                                              int next_row, int next_col) {
  const auto at = [&](int r, int c) -> uint32_t {
    return r < rows && c < cols ? __half_as_ushort(matrix[r * ld + c]) : 0;
  };
  return at(row, col) | at(row + next_row, col + next_col) << 16;
}

__global__ void __launch_bounds__(32) mma_naive(const __grid_constant__ Gemm g) {
  const tile::TileCoord tile = panel_raster(blockIdx.x, g.tiles_m, g.tiles_n, g.panel);
  const int lane = threadIdx.x, pair = lane % 4 * 2;
  const int row = tile.m * 16 + lane / 4, col = tile.n * 8;
  Sums<Arithmetic::kAccumulateF16> acc = {};
  for (int k = 0; k < g.k; k += 16) {
    uint32_t a[4], b[2];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      a[i] = load_pair(g.a, g.lda, row + i % 2 * 8, k + i / 2 * 8 + pair, g.m, g.k, 0, 1);
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) b[i] = load_pair(g.b, g.ldb, k + i * 8 + pair, col + lane / 4, g.k, g.n, 1, 0);
    ptx::Mma<__half>::m16n8k16(acc, a, b[0], b[1]);
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) store_pair(g, row + half * 8, col + pair, pair_of(acc, half));
}

}  // namespace

#define MMA_NAIVE(NAME, ...)                                               \
  Status launch_##NAME(const StepProblem& p, Stream stream) {              \
    return launch_tiles(mma_naive, gemm_of(p, 16, 8, p.n), 32, 0, stream); \
  }
#include "ladder/variants.inc"

}  // namespace hgemm::ladder
