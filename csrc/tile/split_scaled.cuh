// Sums over two float16 planes of each operand (split_planes.h): back to the operands' scale, and whether they are
// accurate. The layout of a thread's accumulators is that of split_product.cuh.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>
#include <cstring>

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

/// The scale of a row. Beyond the last row no sum is too small.
__device__ __forceinline__ Scale scale_of(const Scaled& s, const Operand& o, int matrix, int row) {
  if (row >= o.rows) return {-2 * kNever, 0, false, 0};
  return s.scales[int64_t{matrix} * o.rows + row];
}

__device__ __forceinline__ float factor_of(const Scale& scale) {
  return __uint_as_float(static_cast<uint32_t>(127 - scale.exponent) << 23);
}

/// True if the rows beside `row` have few terms (Scale). A warp calls it.
__device__ __forceinline__ bool have_few_terms(const Scaled& s, const Operand& o, int matrix, int row) {
  const int from = row - row % kTermsOfRows + static_cast<int>(threadIdx.x) % 32;
  uint32_t terms = 0, rows = 0;
#pragma unroll
  for (int i = 0; i < kTermsOfRows; i += 32) {
    const uint32_t of_row = scale_of(s, o, matrix, from + i).terms;
    terms += of_row;
    rows += of_row > 0;
  }
  return __reduce_add_sync(~0u, terms) < kFewTerms * __reduce_add_sync(~0u, rows);
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

/// Scales a warp's sums, 16 rows and COLS columns from `first` on, back to those of the operands, and sets `failed` if
/// one of them is not accurate.
template <int COLS>
__device__ __forceinline__ void scale_back(const Scaled& a, const Scaled& b, const Product& p, const Work& work,
                                           Place first, float (&sums)[COLS / 2], unsigned* failed) {
  const int matrix_a = matrix_of(p.a, work), matrix_b = matrix_of(p.b, work), lane = threadIdx.x % 32;
  Scale of_row[2];
  float row_factor[2];
  bool one_sign_row = false, one_sign_col = false;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    of_row[half] = scale_of(a, p.a, matrix_a, first.row + lane / 4 + half * 8);
    row_factor[half] = factor_of(of_row[half]);
    one_sign_row |= of_row[half].is_one_sign;
  }
  uint64_t doubtful = 0;  // a bit for each of this thread's sums
#pragma unroll
  for (int i = 0; i < COLS / 2; i += 4) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const Scale of_col = scale_of(b, p.b, matrix_b, first.col + i * 2 + lane % 4 * 2 + j);
      const float col_factor = factor_of(of_col);
      one_sign_col |= of_col.is_one_sign;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float& sum = sums[i + half * 2 + j];
        if (!(fabsf(sum) >= of_row[half].least + of_col.least)) doubtful |= uint64_t{1} << (i + half * 2 + j);
        sum = sum * row_factor[half] * col_factor;
      }
    }
  }
  const bool is_one_sign = __any_sync(~0u, one_sign_row) && __any_sync(~0u, one_sign_col);
  if (is_one_sign || have_few_terms(a, p.a, matrix_a, first.row) || have_few_terms(b, p.b, matrix_b, first.col)) {
    if (lane == 0) *static_cast<volatile unsigned*>(failed) = 1;
    return;
  }
#pragma unroll 1
  for (unsigned lanes; (lanes = __ballot_sync(~0u, doubtful != 0)) != 0;) {
    if (__shfl_sync(~0u, *static_cast<volatile unsigned*>(failed), 0) != 0) return;
    const int from = __ffs(static_cast<int>(lanes)) - 1;
    const int i = __ffsll(static_cast<long long>(__shfl_sync(~0u, doubtful, from))) - 1;
    if (lane == from) doubtful &= doubtful - 1;
    const int row = first.row + from / 4 + i / 2 % 2 * 8, col = first.col + i / 4 * 8 + from % 4 * 2 + i % 2;
    const float least = scale_of(a, p.a, matrix_a, row).least + scale_of(b, p.b, matrix_b, col).least;
    const __half* const x = a.planes + (int64_t{matrix_a} * kTwoPlanes * p.a.rows + row) * a.ld;
    const __half* const y = b.planes + (int64_t{matrix_b} * kTwoPlanes * p.b.rows + col) * b.ld;
    if (least < kNever && reaches(x, y, p.k, least)) continue;
    if (lane == 0) *static_cast<volatile unsigned*>(failed) = 1;
    return;
  }
}

}  // namespace hgemm::tile::split
