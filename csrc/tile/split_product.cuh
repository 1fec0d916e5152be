// Parts shared by kernels over planes of float32 operands (split_planes.h), apart from their main loops: sums in two
// registers, results that planes cannot represent, and the epilogue. A thread's accumulators are those of mma.sync and
// wgmma: two of each 16 rows, eight rows apart, and two neighbours of each eight columns.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "core/fast_divisor.h"
#include "core/problem.h"
#include "tile/epilogue.cuh"
#include "tile/split_planes.h"

namespace hgemm::tile::split {

/// One operand: the position of its matrices among the planes, and the operand itself, for values that planes cannot
/// represent.
struct Operand {
  int32_t step[2];  // from one batch to the next, in matrices of the planes: outer, inner
  const unsigned char* tiny;
  const float* x;
  int64_t row, k_stride, batch[2];
  int32_t rows, pieces;
  Parts parts;
};

struct Product {
  Operand a, b;
  uint32_t flips;  // real_form_flips()
  int pairs;       // 1 if real and imaginary parts are neighbours in memory, else 0
  int k;
  FastDivisor batch_inner;
  EpilogueParams epilogue;
  bool mirrors;  // x @ x.T: results of the upper triangle are stored to both triangles, all others to none
  int diagonal;  // of this slab: its first row less its first column, which say where the diagonal of D is
};

inline Operand operand_of(const Side& side) {
  const Planes& planes = side.planes;
  Operand o{};
  o.step[0] = side.x.batch_stride[0] == 0 ? 0 : static_cast<int32_t>(planes.batch[1]);
  o.step[1] = side.x.batch_stride[1] == 0 ? 0 : 1;
  o.tiny = side.memory + planes.tiny_at;
  o.x = static_cast<const float*>(side.x.data);
  o.row = side.row;
  o.k_stride = side.k_stride;
  for (int i = 0; i < 2; ++i) o.batch[i] = side.x.batch_stride[i];
  o.rows = static_cast<int32_t>(planes.rows);
  o.pieces = static_cast<int32_t>(planes.pieces);
  o.parts = side.parts;
  return o;
}

inline Product product_of(const Problem& p, const Side& a, const Side& b, const Changed& changed) {
  Product product{};
  product.a = operand_of(a);
  product.b = operand_of(b);
  product.flips = b.flips;
  product.pairs = p.is_real_form;
  product.k = static_cast<int>(p.k);
  product.batch_inner = FastDivisor(static_cast<uint32_t>(p.batch[1]));
  product.epilogue = epilogue_params(p, nullptr);
  product.mirrors = p.b_is_a_transposed;
  product.diagonal = static_cast<int>(changed.diagonal);
  return product;
}

/// The pairs of planes that are multiplied: the first planes, then the others in ascending order of magnitude.
template <int PLANES>
struct Pairs;
template <>
struct Pairs<kPlanes> {
  using Element = __nv_bfloat16;
  static constexpr int kCount = 6;
  int planes[kCount][2] = {{0, 0}, {2, 0}, {1, 1}, {0, 2}, {1, 0}, {0, 1}};
};
template <>
struct Pairs<kTwoPlanes> {
  using Element = __half;
  static constexpr int kCount = 3;
  int planes[kCount][2] = {{0, 0}, {1, 0}, {0, 1}};
};

/// The output tile of a block.
struct Work {
  int m0, n0, outer, inner;
};

__device__ __forceinline__ int matrix_of(const Operand& o, const Work& work) {
  return work.outer * o.step[0] + work.inner * o.step[1];
}

/// True if a row of A, or a column of B, has a segment that is too small for planes.
__device__ __forceinline__ bool is_tiny(const Operand& o, int matrix, int row) {
  if (row >= o.rows) return false;
  const unsigned char* const pieces = o.tiny + (int64_t{matrix} * o.rows + row) * o.pieces;
  uint32_t any = 0;
#pragma unroll 4
  for (int i = 0; i < o.pieces; ++i) any |= pieces[i];
  return any != 0;
}

/// True if a sum is reliable: it is finite, and not so small that the last planes of its terms were below the smallest
/// float.
__device__ __forceinline__ bool is_held(float sum) {
  constexpr uint32_t kSmallest = (127 - 100) << 23, kInfinity = 0x7f800000;
  const uint32_t magnitude = __float_as_uint(sum) & 0x7fffffff;
  return magnitude == 0 || (magnitude >= kSmallest && magnitude < kInfinity);
}

/// Adds x to `sum` and sets x to the rounding error of that addition. This is Dekker's method, with half as many
/// additions as Knuth's; it is exact unless x exceeds the sum, as x may at first.
__device__ __forceinline__ void add_keeping_rest(float& sum, float& x) {
  const float old = sum;
  sum = __fadd_rn(old, x);
  x = __fsub_rn(x, __fsub_rn(sum, old));
}

/// Adds `low` to `high` and sets `low` to the rounding error (Knuth's two-sum). NaN if an operand was not finite.
__device__ __forceinline__ void carry(float& high, float& low) {
  const float sum = __fadd_rn(high, low), of_low = __fsub_rn(sum, high);
  low = __fadd_rn(__fsub_rn(high, __fsub_rn(sum, of_low)), __fsub_rn(low, of_low));
  high = sum;
}

/// A sum over planes is kept in two registers, as high + low / 2^LOW_BITS. `high` takes the products of the first
/// planes, which an accumulator of their own has added up: add_keeping_rest() adds the accumulator to `high`, and
/// add_rest() adds to `low` what is left of it. `low` is the tensor core's accumulator of all other products. Each is
/// at most 2^-8 of the first, so the tensor core's truncation of `low` does not show. `LOW_BITS` is kLowBits for two
/// planes, whose other products are scaled, and 0 for three.
template <int LOW_BITS>
__device__ __forceinline__ void add_rest(float& low, float rest) {
  low = LOW_BITS == 0 ? low + rest : fmaf(rest, static_cast<float>(1 << LOW_BITS), low);
}

/// Moves what it can from `low` to `high`, so that `low` stays small.
template <int LOW_BITS>
__device__ __forceinline__ void carry_low(float& high, float& low) {
  constexpr auto kUnit = static_cast<float>(1 << LOW_BITS);
  float x = low / kUnit;
  carry(high, x);
  low = x * kUnit;
}

/// The whole sum of two registers.
///
/// The tensor core truncates sums of 22-bit products, of two float16 planes. What it adds up of 64 k on Hopper, or of
/// 32 k on older GPUs, loses 0.9 * 2^-24 to 1.8 * 2^-24 of its magnitude in the mean, for terms of both signs and of
/// one sign. Half of that range lies on either side of kLoss. Where `low` is zero the second planes are, as those of
/// small integers, and nothing is lost.
template <int LOW_BITS>
__device__ __forceinline__ float whole_sum(float high, float low) {
  constexpr auto kUnit = static_cast<float>(1 << LOW_BITS);
  constexpr float kLoss = LOW_BITS > 0 ? 0x1p-23f : 0.0f;
  const float loss = low != 0.0f ? high * kLoss : 0.0f;
  return high + (low / kUnit + loss);
}

/// The row and column in D of the first element of a thread or a warp.
struct Place {
  int row, col;
};

/// The original float32 values of a row of A, or of a column of B. The two columns of B' that a complex column makes
/// have the same values.
__device__ __forceinline__ const float* row_of(const Operand& o, const Work& work, int row) {
  const int first = min(row, o.rows - 1) & (o.parts == Parts::kComplexB ? ~1 : ~0);
  return o.x + work.outer * o.batch[0] + work.inner * o.batch[1] + first * o.row;
}

/// Element k of such a row; `j` is 1 for the odd columns of B' of a complex product.
__device__ __forceinline__ float value_at(const Product& p, const Operand& o, const float* row, int k, int j) {
  const float value = row[(k & ~p.pairs) * o.k_stride + ((k & p.pairs) ^ j)];
  const uint32_t flip = o.parts == Parts::kComplexB ? p.flips >> (2 * j + (k & 1)) & 1 : 0;
  return __uint_as_float(__float_as_uint(value) ^ flip << 31);
}

/// Recomputes in float64, in K's order, results that the planes cannot represent: results that are not finite
/// (infinities, NaN and values that round to infinity leave NaN in the planes), tiny results, and results of rows that
/// the pass has flagged as too small. A sum beyond the largest float32 becomes infinite, as it does in float32. The
/// case is rare and slow, so one loop over groups serves all accumulators.
template <int COLS>
__device__ __forceinline__ void mend(const Product& p, const Work& work, Place at, float (&sums)[COLS / 2]) {
  constexpr int kAtOnce = 4, kGroups = COLS / 16;  // columns of this thread per group; groups per row
  constexpr double kLargest = 3.40282346638528859811704183484516925440e+38;
  const int matrix_a = matrix_of(p.a, work), matrix_b = matrix_of(p.b, work);
#pragma unroll 1
  for (int group = 0; group < 2 * kGroups; ++group) {
    const int half = group / kGroups, first = group % kGroups * 16;
    // Visits the accumulators of this group. They are in registers, so their indices must be known to the compiler.
    const auto visit = [&](const auto& function) {
#pragma unroll
      for (int i = 0; i < COLS / 2; ++i) {
        if (i / 8 * 16 == first && i / 2 % 2 == half) function(i / 4 % 2 * 2 + i % 2, sums[i]);
      }
    };
    const int row = at.row + half * 8;
    const bool tiny_row = is_tiny(p.a, matrix_a, row);
    const float* const a = row_of(p.a, work, row);
    const float* b[kAtOnce];
    bool bad[kAtOnce], any = false;
    visit([&](int j, float sum) { bad[j] = !is_held(sum); });
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      const int col = at.col + first + j / 2 * 8 + j % 2;
      b[j] = row_of(p.b, work, col);
      bad[j] |= tiny_row || is_tiny(p.b, matrix_b, col);
      any |= bad[j];
    }
    if (!__any_sync(~0u, any)) continue;
    double exact[kAtOnce] = {};
#pragma unroll 4
    for (int k = 0; k < p.k; ++k) {
      const double x = value_at(p, p.a, a, k, 0);
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) {
        exact[j] = fma(x, double{value_at(p, p.b, b[j], k, j & p.pairs)}, exact[j]);
        if (fabs(exact[j]) > kLargest) exact[j] = copysign(double{INFINITY}, exact[j]);
      }
    }
    visit([&](int j, float& sum) {
      if (bad[j]) sum = static_cast<float>(exact[j]);
    });
  }
}

/// True if this lane of a warp finds a flagged segment in `rows` rows of A, or columns of B, from `row` on. The warp
/// reads all flags of these rows together, since every tile needs the answer.
__device__ __forceinline__ bool finds_tiny(const Operand& o, int matrix, int row, int rows) {
  const int count = max(min(rows, o.rows - row), 0) * o.pieces, lane = threadIdx.x % 32;
  const unsigned char* const pieces = o.tiny + (int64_t{matrix} * o.rows + row) * o.pieces;
  const int head = min(count, static_cast<int>(-reinterpret_cast<uintptr_t>(pieces) % sizeof(uint4)));
  const int wide = (count - head) / static_cast<int>(sizeof(uint4)),
            tail = head + wide * static_cast<int>(sizeof(uint4));
  uint32_t any = lane < head ? pieces[lane] : 0;
  if (tail + lane < count) any |= pieces[tail + lane];
#pragma unroll 4
  for (int i = lane; i < wide; i += 32) {
    const uint4 x = reinterpret_cast<const uint4*>(pieces + head)[i];
    any |= x.x | x.y | x.z | x.w;
  }
  return any != 0;
}

/// True if any of the warp's 16 rows and COLS columns from `first` on must be recomputed.
template <int COLS>
__device__ __forceinline__ bool needs_mending(const Product& p, const Work& work, Place first,
                                              const float (&sums)[COLS / 2]) {
  bool any = finds_tiny(p.a, matrix_of(p.a, work), first.row, 16);
  any |= finds_tiny(p.b, matrix_of(p.b, work), first.col, COLS);
#pragma unroll
  for (int i = 0; i < COLS / 2; ++i) any |= !is_held(sums[i]);
  return __any_sync(~0u, any);
}

/// Recomputes those of a warp's accumulators, 16 rows and COLS columns from `first` on, that planes cannot represent.
template <int COLS>
__device__ __forceinline__ void mend_if_needed(const Product& p, const Work& work, Place first,
                                               float (&sums)[COLS / 2]) {
  const int lane = threadIdx.x % 32;
  if (!needs_mending<COLS>(p, work, first, sums)) return;
  mend<COLS>(p, work, {first.row + lane / 4, first.col + lane % 4 * 2}, sums);
}

constexpr int kScratchRow = 40;  // floats: 32 columns and a pad that keeps stores free of bank conflicts
constexpr int kScratchBytes = 8 * kScratchRow * 4;  // per warp

/// Writes elements `from` to `to` of the four from offset `at` on, of D or of the matrix of pre-activations. The others
/// are not to be written.
__device__ __forceinline__ void write_row(void* matrix, int64_t at, const float (&v)[4], int from, int to, bool wide) {
  float* const out = static_cast<float*>(matrix) + at;
  if (wide && from <= 0 && to >= 4) {
    *reinterpret_cast<float4*>(out) = make_float4(v[0], v[1], v[2], v[3]);
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (i >= from && i < to) out[i] = v[i];
    }
  }
}

/// Four sums that are neighbours in a row of D, of which the elements `from` to `to` are to be written. `col` may be
/// beyond the last column only where there are none.
struct Four {
  int64_t row;
  int col, from, to;
};

/// Applies the epilogue to four sums, and writes them. `c0` and `d0` are the offsets of this batch's C and D. `pairs`:
/// as in Product.
__device__ __forceinline__ void finish(const EpilogueParams& e, int pairs, int64_t c0, int64_t d0, const Four& at,
                                       const float4& x, const float (&bias)[4]) {
  float v[4] = {x.x * e.alpha, x.y * e.alpha, x.z * e.alpha, x.w * e.alpha};
  if (e.c != nullptr) {
    const float* const c = static_cast<const float*>(e.c) + c0 + at.row * e.c_row;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int col = at.col + i;
      const int64_t of_c = (col & ~pairs) * e.c_col + (col & pairs);
      v[i] = i >= at.from && i < at.to ? fmaf(e.beta, c[of_c], v[i]) : 0.0f;
    }
  }
  if (e.bias != nullptr) {
#pragma unroll
    for (int i = 0; i < 4; ++i) v[i] += bias[i];
  }
  const int64_t to = d0 + at.row * e.ldd + at.col;
  if (e.pre_activation != nullptr) {
    write_row(e.pre_activation, to, v, at.from, at.to, e.wide_d && e.pre_in_phase);
  }
  if (e.act != Activation::kNone) {
#pragma unroll
    for (int i = 0; i < 4; ++i) v[i] = activate(v[i], e.act);
  }
  write_row(e.d, to, v, at.from, at.to, e.wide_d);
}

/// The elements `from` to `to` of the bias that is added to four columns from `col` on.
__device__ __forceinline__ void load_bias(const EpilogueParams& e, int col, int from, int to, float (&bias)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    bias[i] = e.bias != nullptr && i >= from && i < to ? static_cast<const float*>(e.bias)[col + i] : 0.0f;
  }
}

/// Writes alpha * sums + bias to D, straight from the registers, for a warp's 16 rows and COLS columns, all of which
/// lie inside D. It avoids the branches of `emit`, which took a quarter of a GEMM with K = 768 (sm90_split/NOTES.md).
template <int COLS>
__device__ __forceinline__ void emit_plain(const EpilogueParams& e, int64_t d0, Place at,
                                           const float (&sums)[COLS / 2]) {
  float* const upper = static_cast<float*>(e.d) + d0 + at.row * e.ldd + at.col;
  float* const lower = upper + 8 * e.ldd;
  const float* const bias = static_cast<const float*>(e.bias) + at.col;
#pragma unroll
  for (int j = 0; j < COLS / 8; ++j) {
    float2 add = {-0.0f, -0.0f};  // adding -0 keeps the sign of a zero
    if (e.bias != nullptr) add = {bias[j * 8], bias[j * 8 + 1]};
    const float* const v = sums + j * 4;
    const float2 x = {v[0] * e.alpha + add.x, v[1] * e.alpha + add.y};
    const float2 y = {v[2] * e.alpha + add.x, v[3] * e.alpha + add.y};
    if (e.wide_d) {
      *reinterpret_cast<float2*>(upper + j * 8) = x;
      *reinterpret_cast<float2*>(lower + j * 8) = y;
    } else {
      upper[j * 8] = x.x, upper[j * 8 + 1] = x.y;
      lower[j * 8] = y.x, lower[j * 8 + 1] = y.y;
    }
  }
}

/// What emit_plain does, to the mirror image of the same elements: D[col, row] = alpha * sums[row, col]. The eight
/// lanes that have neighbouring rows write 32 bytes together.
template <int COLS>
__device__ __forceinline__ void emit_plain_mirrored(const EpilogueParams& e, int64_t d0, Place at, int diagonal,
                                                    const float (&sums)[COLS / 2]) {
  float* to = static_cast<float*>(e.d) + d0 + int64_t{at.col - diagonal} * e.ldd + at.row + diagonal;
#pragma unroll
  for (int j = 0; j < COLS / 8; ++j, to += 8 * e.ldd) {
    const float* const v = sums + j * 4;
    to[0] = v[0] * e.alpha, to[8] = v[2] * e.alpha;
    to[e.ldd] = v[1] * e.alpha, to[e.ldd + 8] = v[3] * e.alpha;
  }
}

/// x @ x.T: writes the results of the upper triangle twice, at (row, col) and at (col, row), so that D is symmetric to
/// the bit, as far as C is. Results below the diagonal are dropped. Rows and columns count from the start of the slab.
template <int COLS>
__device__ __forceinline__ void emit_mirrored(const Product& p, int64_t c0, int64_t d0, Place first,
                                              const float (&sums)[COLS / 2], float* scratch) {
  const EpilogueParams& e = p.epilogue;
  const int lane = threadIdx.x % 32;
  if (first.row + p.diagonal >= first.col + COLS) return;
  const bool is_plain = e.c == nullptr && e.act == Activation::kNone && e.pre_activation == nullptr && !e.bias;
  const bool is_inside = first.row + 16 <= e.m && first.col + COLS <= e.n;
  if (is_plain && is_inside && first.row + 16 + p.diagonal <= first.col) {
    const Place at{first.row + lane / 4, first.col + lane % 4 * 2};
    emit_plain<COLS>(e, d0, at, sums);
    emit_plain_mirrored<COLS>(e, d0, at, p.diagonal, sums);
    return;
  }
  // One part has 32 columns of eight rows. The loop is not unrolled, because its body is long.
#pragma unroll 1
  for (int part = 0; part < COLS / 16; ++part) {
    const int row0 = first.row + part % 2 * 8, col0 = first.col + part / 2 * 32;
    __syncwarp();
#pragma unroll
    for (int i = 0; i < COLS / 2; i += 2) {  // the sums are in registers, so their indices are constants
      if (i / 16 * 2 + i / 2 % 2 != part) continue;
      float* const at = scratch + lane / 4 * kScratchRow + i / 4 % 4 * 8 + lane % 4 * 2;
      *reinterpret_cast<float2*>(at) = make_float2(sums[i], sums[i + 1]);
    }
    __syncwarp();
#pragma unroll
    for (int q = 0; q < 4; ++q) {
      Four at;
      float4 x;
      if (q < 2) {  // as it lies in the tile: four columns of a row
        const int r = lane / 8 + q * 4, row = row0 + r, col = col0 + lane % 8 * 4;
        at = {row, col, max(row + p.diagonal - col, 0), row < e.m ? static_cast<int>(e.n) - col : 0};
        x = *reinterpret_cast<const float4*>(scratch + r * kScratchRow + lane % 8 * 4);
      } else {  // mirrored: four rows of a column
        const int r = q % 2 * 4, row = row0 + r, col = col0 + lane;
        const float* const from = scratch + r * kScratchRow + lane;
        at = {col - p.diagonal, row + p.diagonal, 0,
              col < e.n ? min(static_cast<int>(e.m), col - p.diagonal) - row : 0};
        x = make_float4(from[0], from[kScratchRow], from[2 * kScratchRow], from[3 * kScratchRow]);
      }
      at.to = min(at.to, 4);
      if (at.from >= at.to) continue;
      float bias[4];
      load_bias(e, at.col, at.from, at.to, bias);
      finish(p.epilogue, p.pairs, c0, d0, at, x, bias);
    }
  }
}

/// Writes act(alpha * sums + beta * C + bias) to D for a warp's 16 rows and COLS columns from `first` on. Unless
/// emit_plain applies, the results go through `scratch`, so that a warp writes whole lines at once, not parts of eight
/// rows.
template <int COLS>
__device__ __forceinline__ void emit(const Product& p, const Work& work, Place first, const float (&sums)[COLS / 2],
                                     float* scratch) {
  const EpilogueParams& e = p.epilogue;
  const int64_t d0 = work.outer * e.d_batch[0] + work.inner * e.d_batch[1];
  const int64_t c0 = work.outer * e.c_batch[0] + work.inner * e.c_batch[1];
  if (p.mirrors) return emit_mirrored<COLS>(p, c0, d0, first, sums, scratch);
  const int lane = threadIdx.x % 32;
  const bool is_plain = e.c == nullptr && e.act == Activation::kNone && e.pre_activation == nullptr;
  if (is_plain && first.row + 16 <= e.m && first.col + COLS <= e.n) {
    emit_plain<COLS>(e, d0, {first.row + lane / 4, first.col + lane % 4 * 2}, sums);
    return;
  }
#pragma unroll
  for (int chunk = 0; chunk < COLS / 32; ++chunk) {
    const int col = first.col + chunk * 32 + lane % 8 * 4, inside = static_cast<int>(e.n) - col;
    float bias[4];
    load_bias(e, col, 0, inside, bias);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      __syncwarp();
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float* const pair = sums + (chunk * 4 + j) * 4 + half * 2;
        float* const at = scratch + lane / 4 * kScratchRow + j * 8 + lane % 4 * 2;
        *reinterpret_cast<float2*>(at) = make_float2(pair[0], pair[1]);
      }
      __syncwarp();
#pragma unroll
      for (int r = lane / 8; r < 8; r += 4) {
        const int64_t row = first.row + half * 8 + r;
        if (row >= e.m || inside <= 0) break;
        const float4 x = *reinterpret_cast<const float4*>(scratch + r * kScratchRow + lane % 8 * 4);
        finish(p.epilogue, p.pairs, c0, d0, {row, col, 0, inside}, x, bias);
      }
    }
  }
}

}  // namespace hgemm::tile::split
