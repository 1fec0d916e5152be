// Sums over two float16 planes of each operand (split_planes.h): back to the operands' scale, and whether they are
// accurate. The layout of a thread's accumulators is that of split_product.cuh.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>
#include <cstring>

#include "ptx/cp_async.cuh"
#include "ptx/smem_addr.cuh"
#include "tile/split_planes.h"
#include "tile/split_product.cuh"

namespace hgemm::tile::split {

/// The two planes of an operand and the scales of its rows.
struct Scaled {
  const __half* planes;
  const Scale* scales;
  int ld;
};

inline Scaled scaled_of(const Side& side) {
  return {reinterpret_cast<const __half*>(side.memory),
          reinterpret_cast<const Scale*>(side.memory + side.planes.tiny_at), static_cast<int>(side.planes.ld)};
}

/// The Scale of each of kTermsOfRows neighbouring rows of A and columns of B, those of a warp's tile among them. A warp
/// has them in shared memory.
struct Scales {
  Scale rows[kTermsOfRows], cols[kTermsOfRows];
};

/// The first of the kTermsOfRows neighbours of a row or column.
__device__ __forceinline__ int first_neighbour(int row) {
  return row - row % kTermsOfRows;
}

__device__ __forceinline__ void fetch_scales_of(const Scaled& s, const Operand& o, int matrix, int row, Scale* to) {
  const Scale* const of_matrix = s.scales + int64_t{matrix} * o.rows;
  const uint32_t shared = ptx::smem_addr(to);
#pragma unroll
  for (int first = 0; first < kTermsOfRows; first += 32) {
    const int i = first + static_cast<int>(threadIdx.x) % 32, at = first_neighbour(row) + i;
    ptx::cp_async<sizeof(Scale)>(shared + i * int{sizeof(Scale)}, of_matrix + min(at, o.rows - 1), at < o.rows);
  }
}

/// Starts to copy the scales of a warp's tile, whose first element is `first`. Those beyond the last row are zero.
__device__ __forceinline__ void fetch_scales(const Scaled& a, const Scaled& b, const Product& p, const Work& work,
                                             Place first, Scales* to) {
  ptx::cp_async_wait_all();  // a slice that is not the last one does not use its copy
  __syncwarp();
  fetch_scales_of(a, p.a, matrix_of(p.a, work), first.row, to->rows);
  fetch_scales_of(b, p.b, matrix_of(p.b, work), first.col, to->cols);
}

__device__ __forceinline__ float factor_of(const Scale& scale) {
  return __uint_as_float(static_cast<uint32_t>(127 - scale.exponent) << 23);
}

/// What the scales of a warp's rows or columns tell of its results.
struct Doubts {
  bool any_least;     // one of them has a `least` that is not zero
  bool any_one_sign;  // one of them has one sign
  bool few_terms;     // their neighbours have few terms
};

/// The doubts of `count` rows from `row` on. A warp calls it.
__device__ __forceinline__ Doubts doubts_of(const Scale (&scales)[kTermsOfRows], int row, int count) {
  const int at = row - first_neighbour(row);
  bool any_least = false, any_one_sign = false;
  uint32_t terms = 0, rows = 0;
#pragma unroll
  for (int first = 0; first < kTermsOfRows; first += 32) {
    const int i = first + static_cast<int>(threadIdx.x) % 32;
    const Scale scale = scales[i];
    const bool inside = i >= at && i < at + count;
    any_least |= inside && scale.least > 0;
    any_one_sign |= inside && scale.is_one_sign;
    terms += scale.terms;
    rows += scale.terms > 0;
  }
  const bool few = __reduce_add_sync(~0u, terms) < kFewTerms * __reduce_add_sync(~0u, rows);
  return {__any_sync(~0u, any_least) != 0, __any_sync(~0u, any_one_sign) != 0, few};
}

/// True if the magnitudes of the products of the first planes' rows add up to `least` at least. A warp calls it.
__device__ __forceinline__ bool reaches(const __half* a, const __half* b, int count, float least) {
  constexpr int kAtOnce = 8;
  float sum = 0;
  for (int k = 0; k < count; k += 32 * kAtOnce) {
    const int at = k + static_cast<int>(threadIdx.x) % 32 * kAtOnce;
    if (at < count) {
      const uint4 bits_a = *reinterpret_cast<const uint4*>(a + at), bits_b = *reinterpret_cast<const uint4*>(b + at);
      __half2 x[kAtOnce / 2], y[kAtOnce / 2];
      memcpy(x, &bits_a, sizeof(x));
      memcpy(y, &bits_b, sizeof(y));
#pragma unroll
      for (int i = 0; i < kAtOnce / 2; ++i) {
        const float2 u = __half22float2(x[i]), v = __half22float2(y[i]);
        sum += fabsf(u.x * v.x) + fabsf(u.y * v.y);
      }
    }
    float all = sum;
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) all += __shfl_xor_sync(~0u, all, distance);
    if (all >= least) return true;
  }
  return false;
}

/// A bit for each of a thread's sums that is smaller than `least` of its row and its column together.
template <int COLS>
__device__ __forceinline__ uint64_t doubtful_sums(const Product& p, const Scales& scales, Place first,
                                                  const float (&sums)[COLS / 2]) {
  const int row = first.row + static_cast<int>(threadIdx.x) % 32 / 4;
  const int col = first.col + static_cast<int>(threadIdx.x) % 4 * 2;
  const Scale* const of_row = scales.rows + row % kTermsOfRows;
  const Scale* const of_col = scales.cols + col % kTermsOfRows;
  uint64_t doubtful = 0;
#pragma unroll
  for (int i = 0; i < COLS / 2; ++i) {
    const int down = i / 2 % 2 * 8, right = i / 4 * 8 + i % 2;
    const bool inside = row + down < p.a.rows && col + right < p.b.rows;
    if (inside && !(fabsf(sums[i]) >= of_row[down].least + of_col[right].least)) doubtful |= uint64_t{1} << i;
  }
  return doubtful;
}

/// Scales a warp's sums, 16 rows and COLS columns from `first` on, back to those of the operands, and sets `inaccurate`
/// if one of them is not accurate. fetch_scales() has been called for them.
template <int COLS>
__device__ __forceinline__ void scale_back(const Scaled& a, const Scaled& b, const Product& p, const Work& work,
                                           Place first, const Scales& scales, float (&sums)[COLS / 2],
                                           unsigned* inaccurate) {
  const int lane = threadIdx.x % 32;
  ptx::cp_async_wait_all();
  __syncwarp();
  const Doubts of_rows = doubts_of(scales.rows, first.row, 16), of_cols = doubts_of(scales.cols, first.col, COLS);
  uint64_t doubtful = 0;
  if (of_rows.any_least || of_cols.any_least) doubtful = doubtful_sums<COLS>(p, scales, first, sums);
  const Scale* const of_row = scales.rows + first.row % kTermsOfRows + lane / 4;
  const Scale* const of_col = scales.cols + first.col % kTermsOfRows + lane % 4 * 2;
  const float row_factor[2] = {factor_of(of_row[0]), factor_of(of_row[8])};
#pragma unroll
  for (int i = 0; i < COLS / 2; i += 4) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const float col_factor = factor_of(of_col[i * 2 + j]);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float& sum = sums[i + half * 2 + j];
        sum = sum * row_factor[half] * col_factor;
      }
    }
  }
  if ((of_rows.any_one_sign && of_cols.any_one_sign) || of_rows.few_terms || of_cols.few_terms) {
    if (lane == 0) *static_cast<volatile unsigned*>(inaccurate) = 1;
    return;
  }
  const int matrix_a = matrix_of(p.a, work), matrix_b = matrix_of(p.b, work);
#pragma unroll 1
  for (unsigned lanes; (lanes = __ballot_sync(~0u, doubtful != 0)) != 0;) {
    if (__shfl_sync(~0u, *static_cast<volatile unsigned*>(inaccurate), 0) != 0) return;
    const int from = __ffs(static_cast<int>(lanes)) - 1;
    const int i = __ffsll(static_cast<long long>(__shfl_sync(~0u, doubtful, from))) - 1;
    if (lane == from) doubtful &= doubtful - 1;
    const int row = first.row + from / 4 + i / 2 % 2 * 8, col = first.col + i / 4 * 8 + from % 4 * 2 + i % 2;
    const float least = scales.rows[row % kTermsOfRows].least + scales.cols[col % kTermsOfRows].least;
    const __half* const x = a.planes + (int64_t{matrix_a} * kTwoPlanes * p.a.rows + row) * a.ld;
    const __half* const y = b.planes + (int64_t{matrix_b} * kTwoPlanes * p.b.rows + col) * b.ld;
    if (least < kNever && reaches(x, y, p.k, least)) continue;
    if (lane == 0) *static_cast<volatile unsigned*>(inaccurate) = 1;
    return;
  }
}

}  // namespace hgemm::tile::split
