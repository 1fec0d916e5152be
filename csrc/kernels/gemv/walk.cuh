// The iteration of a warp over W: which chunks it loads next, and with which part of x it multiplies them.
#pragma once

#include <cstdint>

#include "core/convert.cuh"
#include "core/problem.h"
#include "kernels/gemv/chunks.cuh"
#include "kernels/gemv/config.h"
#include "kernels/gemv/traits.cuh"
#include "tile/chunk.cuh"

namespace hgemm::gemv {

/// The iteration of a warp over its part of a tile of W, unit by unit. next() loads the next unit into registers, and
/// add() multiplies a loaded unit with x and accumulates. next() runs DEPTH units ahead of add(). end() leaves the
/// warp's sums in shared memory, from where total() adds those of all warps.
template <class Traits, Major kMajor = Traits::kMajor>
class Walk;

/// K-major: a lane loads eight k of four rows, which are 32 / lanes rows apart in the tile.
template <class Traits>
class Walk<Traits, Major::kK> {
  static constexpr int COLS = Traits::COLS;
  using T = typename Traits::T;

 public:
  /// `w`: the matrix of this batch; `row0`: the tile's first row; `slice0`: where the slice begins along K, counted
  /// from the 16-byte boundary before the rows' first elements; `xs` and `sums`: x and the sums in shared memory.
  __device__ __forceinline__ Walk(const Params& p, const uint16_t* w, int row0, int slice0, const uint16_t* xs,
                                  float* sums)
      : p_(p), sums_(sums) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    apart_ = 32 / p.lanes;
    row_ = warp / p.warps * kLoads * apart_ + lane / p.lanes;
    const int shift = shift_of(p, w, row0);
    const int first = (warp % p.warps * p.lanes + lane % p.lanes) * 8;
    step_ = p.warps * p.lanes * 8;
    rows_left_ = min((p.rows - row0 + Traits::kRowStep - 1) / Traits::kRowStep, p.tile_rows) - row_;
    row_stride_ = static_cast<int64_t>(apart_) * Traits::kRowStep * p.ldw;
    at_ = w + (row0 + static_cast<int64_t>(row_) * Traits::kRowStep) * p.ldw - shift + slice0 + first;
    begin_ = shift - slice0 - first;
    // True if the tile may have W's first or last row, so that the words around its rows may not be readable. The
    // same holds where rows are less than eight elements apart.
    ends_ = row0 == 0 || row0 + p.tile_rows * Traits::kRowStep >= p.rows || p.ldw < 8;
    x_ = xs + first;
  }
  /// Elements from a 16-byte boundary to the first element of the tile's rows.
  static __device__ __forceinline__ int shift_of(const Params& p, const uint16_t* w, int row0) {
    return Traits::kNarrow ? tile::off_grid(w + row0 * p.ldw) : 0;
  }
  /// The number of units that this warp loads and adds.
  __device__ __forceinline__ int units() const { return p_.passes * p_.units; }

  __device__ __forceinline__ void next(Chunks& to) {
    const int k = unit_ * step_;
    const int lo = begin_ - k, hi = p_.k + lo;
    load<Traits::kNarrow>(to, at_ + k, row_stride_, hi > 0 ? rows_left_ : 0, apart_, ends_, lo, hi);
    if (++unit_ < p_.units) return;
    unit_ = 0;
    const int rows = kWarps / p_.warps * kLoads * apart_;
    rows_left_ -= rows;
    at_ += static_cast<int64_t>(rows) * Traits::kRowStep * p_.ldw;
  }

  __device__ __forceinline__ void add(Chunks& w) {
    if (Traits::kNarrow) clear_around(w, begin_ - used_ * step_, p_.k + begin_ - used_ * step_);
    uint4 x[COLS];
#pragma unroll
    for (int c = 0; c < COLS; ++c) {
      x[c] = *reinterpret_cast<const uint4*>(x_ + c * p_.slice_k + used_ * step_);
    }
#pragma unroll
    for (int q = 0; q < 4; ++q) {
      float2 xs[COLS];
#pragma unroll
      for (int c = 0; c < COLS; ++c) xs[c] = unpack(tile::word(x[c], q), T());
#pragma unroll
      for (int i = 0; i < kLoads; ++i) {
        const float2 v = unpack(tile::word(w[i], q), T());
#pragma unroll
        for (int c = 0; c < COLS; ++c) acc_[i][c] = fmaf(v.y, xs[c].y, fmaf(v.x, xs[c].x, acc_[i][c]));
      }
    }
    if (++used_ == p_.units) end_pass();
  }
  __device__ __forceinline__ void end() {}

  /// The sum over all warps for one row of the tile and one row of x.
  static __device__ __forceinline__ float total(const Params& p, const float* sums, const int*, int row, int col) {
    float sum = sums[col * p.tile_rows + row];
    for (int i = 1; i < p.warps; ++i) sum += sums[(i * COLS + col) * p.tile_rows + row];
    return sum;
  }

 private:
  /// Exchanges with the lane `apart` lanes away: returns the two lanes' sum of `high` if `mine`, else of `low`.
  static __device__ __forceinline__ float exchange(float low, float high, bool mine, int apart) {
    return (mine ? high : low) + __shfl_xor_sync(~0u, mine ? low : high, apart);
  }
  __device__ __forceinline__ void end_pass() {
    // Adds the sums of four rows over the lanes. Two exchanges, each of which halves the rows of a lane, leave one row
    // per lane. Then the lanes of the same row add theirs.
    const int lane = threadIdx.x % p_.lanes;
    const bool high = lane & p_.lanes / 2, odd = lane & p_.lanes / 4;
    float* const to = sums_ + (threadIdx.x / 32 % p_.warps * COLS) * p_.tile_rows + row_ + (2 * high + odd) * apart_;
#pragma unroll
    for (int c = 0; c < COLS; ++c) {
      float pair[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) pair[i] = exchange(acc_[i][c], acc_[i + 2][c], high, p_.lanes / 2);
      float sum = exchange(pair[0], pair[1], odd, p_.lanes / 4);
      for (int apart = p_.lanes / 8; apart > 0; apart /= 2) sum += __shfl_xor_sync(~0u, sum, apart);
      if (lane % (p_.lanes / 4) == 0) to[c * p_.tile_rows] = sum;
#pragma unroll
      for (int i = 0; i < kLoads; ++i) acc_[i][c] = 0.0f;
    }
    used_ = 0;
    row_ += kWarps / p_.warps * kLoads * apart_;
  }

  const Params& p_;
  const uint16_t *at_, *x_;  // where this lane begins in W and in x
  float* sums_;
  int64_t row_stride_;  // elements of W from one of this lane's rows to the next
  // Rows of the tile between this lane's rows, its first row, rows from there to the tile's end; k from one unit to the
  // next; where rows begin along K, relative to this lane's first k.
  int apart_, row_, rows_left_, step_, begin_;
  bool ends_;
  int unit_ = 0, used_ = 0;  // units of the current pass that next() has loaded, and that add() has used
  float acc_[kLoads][COLS] = {};
};

/// MN-major: a lane loads eight rows at each of four k.
template <class Traits>
class Walk<Traits, Major::kMN> {
  static constexpr int COLS = Traits::COLS;
  static constexpr int kStride = Traits::kNarrow ? 8 : 1;  // between consecutive k of a warp
  using T = typename Traits::T;

 public:
  __device__ __forceinline__ Walk(const Params& p, const uint16_t* w, int row0, int slice0, const uint16_t* xs,
                                  float* sums)
      : p_(p), sums_(sums) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, group = lane / p.lanes, groups = 32 / p.lanes;
    const int shift = shift_of(p, w, row0, warp);
    const int row = row0 + lane % p.lanes * 8 - shift;
    const int first = Traits::kNarrow ? warp + group * 8 * kLoads : (warp * groups + group) * kLoads;
    step_ = groups * kWarps * kLoads;
    at_ = w + (slice0 + static_cast<int64_t>(first)) * p.ldw + row;
    lo_ = -row;
    left_ = row < p.rows ? min(p.k - slice0, p.slice_k) - first : 0;
    x_ = xs + (Traits::kNarrow ? warp * (p.slice_k / kWarps) + group * kLoads : first);
    x_step_ = step_ / kStride;
  }
  static __device__ __forceinline__ int shift_of(const Params&, const uint16_t*, int) { return 0; }
  __device__ __forceinline__ int units() const { return p_.units; }

  __device__ __forceinline__ void next(Chunks& to) {
    const bool ends = first_ || left_ <= kLoads * kStride || p_.ldw < 8;  // perhaps W's first or last k
    load<Traits::kNarrow>(to, at_, kStride * p_.ldw, left_, kStride, ends, lo_, p_.rows + lo_);
    first_ = false;
    at_ += step_ * p_.ldw;
    left_ -= step_;
  }

  __device__ __forceinline__ void add(const Chunks& w) {
    float2 x[COLS][2];
#pragma unroll
    for (int c = 0; c < COLS; ++c) {
      const uint2 four = *reinterpret_cast<const uint2*>(x_ + c * p_.slice_k);
      x[c][0] = unpack(four.x, T());
      x[c][1] = unpack(four.y, T());
    }
#pragma unroll
    for (int j = 0; j < kLoads; ++j) {
#pragma unroll
      for (int q = 0; q < 4; ++q) {
        const float2 v = unpack(tile::word(w[j], q), T());
#pragma unroll
        for (int c = 0; c < COLS; ++c) {
          const float factor = j % 2 ? x[c][j / 2].y : x[c][j / 2].x;
          acc_[2 * q][c] = fmaf(v.x, factor, acc_[2 * q][c]);
          acc_[2 * q + 1][c] = fmaf(v.y, factor, acc_[2 * q + 1][c]);
        }
      }
    }
    x_ += x_step_;
  }

  /// Stores the sums as (warps, COLS, 8, pitch): one plane for each of a chunk's eight rows, in which neighbouring
  /// lanes are neighbours. That avoids bank conflicts both here and in total().
  __device__ __forceinline__ void end() {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, pitch = p_.lanes + 4;
    for (int apart = p_.lanes; apart < 32; apart *= 2) {
#pragma unroll
      for (int e = 0; e < 8; ++e) {
#pragma unroll
        for (int c = 0; c < COLS; ++c) acc_[e][c] += __shfl_xor_sync(~0u, acc_[e][c], apart);
      }
    }
    if (lane >= p_.lanes) return;
#pragma unroll
    for (int e = 0; e < 8; ++e) {
#pragma unroll
      for (int c = 0; c < COLS; ++c) sums_[((warp * COLS + c) * 8 + e) * pitch + lane] = acc_[e][c];
    }
  }
  static __device__ __forceinline__ int shift_of(const Params& p, const uint16_t* w, int row0, int warp) {
    return Traits::kNarrow ? tile::off_grid(w + warp * p.ldw + row0) : 0;
  }
  static __device__ __forceinline__ float total(const Params& p, const float* sums, const int* shifts, int row,
                                                int col) {
    const int pitch = p.lanes + 4;
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < kWarps; ++i) {
      const int at = row + (Traits::kNarrow ? shifts[i] : 0);
      sum += sums[((i * COLS + col) * 8 + at % 8) * pitch + at / 8];
    }
    return sum;
  }

 private:
  const Params& p_;
  const uint16_t *at_, *x_;
  float* sums_;
  // k from one unit to the next, in W and in x; the first valid row of a chunk; k that are left from this lane's first.
  int step_, x_step_, lo_, left_;
  bool first_ = true;
  float acc_[8][COLS] = {};
};

}  // namespace hgemm::gemv
