// The tensor-core GEMM for sm_80 and newer: mma.sync m16n8k16 with float32 accumulation.
//
// A block computes a (BM, BN) output tile. It iterates over the k-tiles of A and B with a pipeline of STAGES stages in
// shared memory, which cp.async fills. Each warp computes a (WM, WN) part of the output tile. Its fragments are
// double-buffered in registers, so that the ldmatrix of one k16 step overlaps the mma of the previous one. Shared
// memory is XOR-swizzled (tile/swizzle.cuh), not padded.
//
// The kernel reads all four operand layouts in place. An MN-major operand is stored in shared memory in its own order,
// and ldmatrix transposes it.
#pragma once

#include "core/convert.cuh"
#include "core/problem.h"
#include "kernels/sm80_mma/mainloop.cuh"
#include "tile/epilogue.cuh"
#include "tile/raster.cuh"

namespace hgemm::sm80_mma {

/// The run-time parameters. Strides count elements.
struct Params {
  const void *a, *b;
  int64_t lda, ldb;
  int64_t a_batch[2], b_batch[2];  // batch strides, outer and inner
  int m, n, k;
  uint32_t tiles_m, tiles_n, splits;  // output tiles along M and N; slices of K
  bool in_slices;                     // a Carried kernel adds its accumulators to the sums in slices of K
  int64_t batches;
  bool wide_a, wide_b;  // the operand consists of whole aligned 16-byte chunks
  tile::EpilogueParams epilogue;
};

template <class Traits>
__global__ void __launch_bounds__(Traits::kThreads, 1) kernel(const __grid_constant__ Params p) {
  using T = typename Traits::T;
  constexpr int BM = Traits::BM, BN = Traits::BN, BK = Traits::BK;
  extern __shared__ __align__(1024) unsigned char smem[];

  // This block's output tile, matrix of the batch, and slice of K.
  const uint32_t tiles = p.tiles_m * p.tiles_n;
  const int64_t z = blockIdx.x / tiles;
  const tile::TileCoord tile =
      tile::grouped_raster(blockIdx.x - static_cast<uint32_t>(z) * tiles, p.tiles_m, p.tiles_n);
  const int64_t batch = z / p.splits;
  const int split = static_cast<int>(z - batch * p.splits);
  const int64_t outer = batch / p.epilogue.batch_inner, inner = batch - outer * p.epilogue.batch_inner;
  const T* a = static_cast<const T*>(p.a) + outer * p.a_batch[0] + inner * p.a_batch[1];
  const T* b = static_cast<const T*>(p.b) + outer * p.b_batch[0] + inner * p.b_batch[1];
  const int m0 = tile.m * BM, n0 = tile.n * BN;
  // Slices begin at multiples of kSliceK.
  const int64_t steps = (p.k + kSliceK - 1) / kSliceK;
  const int k_tile0 = p.splits == 1 ? 0 : static_cast<int>(steps * split / p.splits) * (kSliceK / BK);
  const int k_tile1 = p.splits == 1 ? INT32_MAX : static_cast<int>(steps * (split + 1) / p.splits) * (kSliceK / BK);
  const int k_tiles = min((p.k + BK - 1) / BK, k_tile1) - k_tile0;
  const int k0 = k_tile0 * BK, k1 = min(p.k, k0 + k_tiles * BK);  // a fetch beyond k1 reads nothing

  const Operands<T> operands{.a = a,
                             .b = b,
                             .lda = p.lda,
                             .ldb = p.ldb,
                             .m = p.m,
                             .n = p.n,
                             .k0 = k0,
                             .k1 = k1,
                             .k_tiles = k_tiles,
                             .in_slices = p.in_slices,
                             .wide_a = p.wide_a,
                             .wide_b = p.wide_b};
  compute_tile<Traits>(operands, m0, n0, smem, [&](int row, int column, const float* scratch) {
    tile::emit_slice<T, Traits::kEpilogueRows, Traits::WN>(p.epilogue, batch, p.batches, split, row, column, scratch,
                                                           Traits::kEpilogueRow);
  });
}

/// Adds the partial sums of a split-K launch in the order of the slices and applies the epilogue. One thread per eight
/// consecutive columns of a row. Launched with 256 threads per block.
template <class T>
__global__ void __launch_bounds__(256)
    reduce_splits(const __grid_constant__ tile::EpilogueParams e, int splits, int64_t batches) {
  const int64_t groups = (e.n + 7) / 8;
  const int64_t id = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (id >= batches * e.m * groups) return;
  const int64_t row_id = id / groups, col = (id - row_id * groups) * 8;
  const int64_t batch = row_id / e.m, row = row_id - batch * e.m;
  const tile::Span span{0, static_cast<int>(min(e.n - col, static_cast<int64_t>(8)))};
  float acc[8];
#pragma unroll
  for (float& x : acc) x = -0.0f;  // keeps the sign of a zero
  for (int s = 0; s < splits; ++s) {
    const float* src = e.partial + ((s * batches + batch) * e.m + row) * e.n + col;
    tile::add_scaled(acc, src, 1, span, e.n % 4 == 0, 1.0f);
  }
  tile::finish<T>(e, tile::batch_offset(e, batch), row, col, span, true, acc);
}

}  // namespace hgemm::sm80_mma
