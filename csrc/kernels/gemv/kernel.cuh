// Products of a row or a few, x, with a long operand W, on CUDA cores: any alignment, any architecture.
//
// A thread loads 16-byte chunks of W, four to a unit and DEPTH units in flight, and multiplies them with x, which the
// block has in shared memory, in fp32. Along a K-major W the lanes of a warp share rows, of which it takes four at a
// time, and shuffles add their sums; a warp goes from rows to rows without a pause in its loads. In an MN-major W a
// thread owns eight columns and walks along k. Warps that share rows or columns meet in shared memory.
//
// Slices of K may go to different blocks. They leave sums in the workspace, and the last one to arrive, as a counter
// tells it, adds them all up in an order that depends on nothing: the same bits every time.
//
// Unaligned, chunks are still 16 aligned bytes, and what shifts is the other operand. Along a K-major W the rows of a
// tile lie eight apart, so that they share their offset from the grid, and x lies as much later in shared memory. In an
// MN-major W each warp takes the k of one residue modulo 8, and its columns begin as many earlier.
#pragma once

#include "core/convert.cuh"
#include "core/problem.h"
#include "kernels/gemv/config.h"
#include "ptx/dependent_launch.cuh"
#include "ptx/global.cuh"
#include "tile/chunk.cuh"
#include "tile/epilogue.cuh"

namespace hgemm::gemv {

/// What the kernel is compiled for.
template <class Config_, class T_, Major kMajor_, bool kNarrow_>
struct Traits : Config_ {
  using T = T_;
  static constexpr Major kMajor = kMajor_;   // of W
  static constexpr bool kNarrow = kNarrow_;  // not Roles::wide
  static constexpr bool kKMajor = kMajor == Major::kK;
  static constexpr int DEPTH = kKMajor ? Config_::kDepthK : Config_::kDepthMN;
  // The ends of unaligned rows take registers, and conversions do before sm_90.
  static constexpr int kBlocksMN = kNarrow && Config_::kBlocksMN > 2 ? Config_::kBlocksMN - 1 : Config_::kBlocksMN;
  static constexpr int kBlocksHere = kKMajor ? Config_::kBlocksK : kBlocksMN;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
  static constexpr int kBlocks = (kBlocksHere + 1) / 2;
#else
  static constexpr int kBlocks = kBlocksHere;
#endif
  static constexpr int kRowStep = kKMajor && kNarrow ? 8 : 1;  // between the rows of a tile
};

struct Params {
  const void *w, *x;
  int64_t ldw, x_row, x_k;
  int64_t w_batch[2], x_batch[2];
  uint32_t batch_inner;
  int rows, cols, k;
  int lanes, warps, passes, units;  // units: of a warp in a pass
  int tile_rows, slice_k, slices;
  bool swapped;       // D's rows are W's
  bool hurries_next;  // Schedule::hurries_next
  int slot;           // of counters
  float* partial;     // (batches, tiles, slices, COLS, tile_rows)
  tile::EpilogueParams epilogue;
};

// Zero whenever no kernel runs that uses them: the last of those that count at one sets it back. Which are whose:
// counters.cu. Each element type has its own.
static __device__ unsigned counters[kSlots * kMaxCounted];

__device__ __forceinline__ float2 unpack(uint32_t pair, __half) {
  return __half22float2(*reinterpret_cast<const __half2*>(&pair));
}
__device__ __forceinline__ float2 unpack(uint32_t pair, __nv_bfloat16) {
  return make_float2(__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u));
}

using Chunks = uint4[kLoads];

/// The aligned words that hold elements 2 Q and 2 Q + 1 of chunks, where one of these lies in lo..hi-1. Of the others
/// only the one before lo is read: allocations start on whole words, but do not end on them.
template <int Q>
__device__ __forceinline__ void load_words(Chunks& to, const uint16_t* from, int64_t stride, int left, int apart,
                                           int lo, int hi) {
  constexpr int kFirst = 2 * Q;
  if (lo > kFirst + 1 || hi <= kFirst) return;
#pragma unroll
  for (int i = 0; i < kLoads; ++i) {
    if (i * apart >= left) break;
    const uint16_t* const at = from + i * stride + kFirst;
    (Q == 0   ? to[i].x
     : Q == 1 ? to[i].y
     : Q == 2 ? to[i].z
              : to[i].w) = hi == kFirst + 1 ? ptx::ld_2(at) : ptx::ld_4(at);
  }
}

/// Chunks `stride` elements apart, zeros from the first one on that is `left / apart` or more behind. Only elements
/// lo..hi-1 of them mean anything; `ends`: there may be no memory around these.
template <bool kNarrow>
__device__ __forceinline__ void load(Chunks& to, const uint16_t* from, int64_t stride, int left, int apart, bool ends,
                                     int lo, int hi) {
#pragma unroll
  for (int i = 0; i < kLoads; ++i) to[i] = make_uint4(0, 0, 0, 0);
  if (kNarrow && ends && (lo > 0 || hi < 8)) {
    load_words<0>(to, from, stride, left, apart, lo, hi);
    load_words<1>(to, from, stride, left, apart, lo, hi);
    load_words<2>(to, from, stride, left, apart, lo, hi);
    load_words<3>(to, from, stride, left, apart, lo, hi);
  } else {
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      if (i * apart < left) to[i] = ptx::ld_once_16(from + i * stride);
    }
  }
}

/// Clears all but elements lo..hi-1 of chunks: what lies beside a row of W, NaN for instance, must not meet x's zeros.
__device__ __forceinline__ void clear_around(Chunks& chunks, int lo, int hi) {
  if (lo <= 0 && hi >= 8) return;
  uint32_t mask[4];
#pragma unroll
  for (int q = 0; q < 4; ++q) {
    mask[q] = (lo <= 2 * q && 2 * q < hi ? 0xffffu : 0u) | (lo <= 2 * q + 1 && 2 * q + 1 < hi ? 0xffff0000u : 0u);
  }
#pragma unroll
  for (uint4& chunk : chunks) {
    chunk = make_uint4(chunk.x & mask[0], chunk.y & mask[1], chunk.z & mask[2], chunk.w & mask[3]);
  }
}

/// A warp's way through its part of a tile of W, unit by unit: next() loads one, add() multiplies one with x.
template <class Traits, Major kMajor = Traits::kMajor>
class Walk;

/// A lane loads eight k of four rows, 32 / lanes apart in the tile.
template <class Traits>
class Walk<Traits, Major::kK> {
  static constexpr int COLS = Traits::COLS;
  using T = typename Traits::T;

 public:
  /// `slice0`: where the slice begins, counted like the tile's rows from the grid.
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
    // Some row is W's first or last, or as good as that.
    ends_ = row0 == 0 || row0 + p.tile_rows * Traits::kRowStep >= p.rows || p.ldw < 8;
    x_ = xs + first;
  }
  static __device__ __forceinline__ int shift_of(const Params& p, const uint16_t* w, int row0) {
    return Traits::kNarrow ? tile::off_grid(w + row0 * p.ldw) : 0;
  }
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

  /// The sum of all warps for a row of the tile.
  static __device__ __forceinline__ float total(const Params& p, const float* sums, const int*, int row, int col) {
    float sum = sums[col * p.tile_rows + row];
    for (int i = 1; i < p.warps; ++i) sum += sums[(i * COLS + col) * p.tile_rows + row];
    return sum;
  }

 private:
  /// This lane's and the other's sum of `low`, or of `high` where `mine` says so.
  static __device__ __forceinline__ float exchange(float low, float high, bool mine, int apart) {
    return (mine ? high : low) + __shfl_xor_sync(~0u, mine ? low : high, apart);
  }
  __device__ __forceinline__ void end_pass() {
    // Four rows' sums over as many lanes: two halvings leave each lane one row, whose remaining lanes add up.
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
  const uint16_t *at_, *x_;
  float* sums_;
  int64_t row_stride_;
  int apart_, row_, rows_left_, step_, begin_;
  bool ends_;
  int unit_ = 0, used_ = 0;
  float acc_[kLoads][COLS] = {};
};

/// A lane loads eight rows at each of four k.
template <class Traits>
class Walk<Traits, Major::kMN> {
  static constexpr int COLS = Traits::COLS;
  static constexpr int kStride = Traits::kNarrow ? 8 : 1;  // of the warp's k
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
    const bool ends = first_ || left_ <= kLoads * kStride || p_.ldw < 8;  // some k is W's first or last, perhaps
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

  /// Sums lie in planes of one of a chunk's eight rows: lanes and rows alike fall into different banks.
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
  int step_, x_step_, lo_, left_;
  bool first_ = true;
  float acc_[8][COLS] = {};
};

/// Puts slice_k elements of every row of x, from k = `first` on, into shared memory, zeros where it has none. For an
/// unaligned MN-major W, whose warps take every eighth k, those of one warp lie together.
template <class Traits>
__device__ __forceinline__ void stage_x(const Params& p, const uint16_t* x, int first, uint16_t* xs) {
  constexpr int COLS = Traits::COLS;
  if constexpr (!Traits::kNarrow) {
    for (int i = threadIdx.x * 8; i < p.slice_k; i += 2 * 8 * kThreads) {
      uint4 v[2][COLS];
#pragma unroll
      for (int h = 0; h < 2; ++h) {
#pragma unroll
        for (int c = 0; c < COLS; ++c) {
          const int k = first + i + h * 8 * kThreads;
          v[h][c] = make_uint4(0, 0, 0, 0);
          if (c < p.cols && k < p.k) v[h][c] = ptx::ld_16(x + c * p.x_row + k);
        }
      }
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int to = i + h * 8 * kThreads;
        if (to >= p.slice_k) break;
#pragma unroll
        for (int c = 0; c < COLS; ++c) *reinterpret_cast<uint4*>(xs + c * p.slice_k + to) = v[h][c];
      }
    }
  } else {
    constexpr int kBatch = 4, kStep = Traits::kKMajor ? kThreads : kThreads / 8;
    const int tid = threadIdx.x;
#pragma unroll 1
    for (int c = 0; c < COLS; ++c) {
      uint16_t* to = xs + c * p.slice_k + (Traits::kKMajor ? tid : tid % 8 * (p.slice_k / 8) + tid / 8);
      int left = p.slice_k - tid;
#pragma unroll 1
      for (int k = first + tid; left > 0; k += kBatch * kThreads) {
        uint16_t v[kBatch];
#pragma unroll
        for (int h = 0; h < kBatch; ++h) {
          const int at = k + h * kThreads;
          v[h] = 0;
          if (c < p.cols && 0 <= at && at < p.k) v[h] = ptx::ld_2(x + c * p.x_row + at * p.x_k);
        }
#pragma unroll
        for (int h = 0; h < kBatch; ++h) {
          if (h * kThreads < left) to[h * kStep] = v[h];
        }
        to += kBatch * kStep;
        left -= kBatch * kThreads;
      }
    }
  }
}

/// Whether this block is the last of its tile's slices: what the others left in the workspace can be read then.
__device__ __forceinline__ bool arrives_last(const Params& p) {
  __shared__ bool last;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    unsigned& counter = counters[p.slot * kMaxCounted + blockIdx.z * gridDim.x + blockIdx.x];
    last = atomicAdd(&counter, 1) + 1 == gridDim.y;
    if (last) counter = 0;
  }
  __syncthreads();
  __threadfence();
  return last;
}

template <class Traits>
__global__ void __launch_bounds__(kThreads, Traits::kBlocks) kernel(const __grid_constant__ Params p) {
  using T = typename Traits::T;
  using Walk = Walk<Traits>;
  constexpr int COLS = Traits::COLS, DEPTH = Traits::DEPTH;
  extern __shared__ __align__(16) float sums[];  // Traits::kSumFloats, then x: (COLS, slice_k)
  auto* const xs = reinterpret_cast<uint16_t*>(sums + Traits::kSumFloats);
  __shared__ int shifts[kWarps];

  const int64_t outer = blockIdx.z / p.batch_inner, inner = blockIdx.z - outer * p.batch_inner;
  const auto* w = static_cast<const uint16_t*>(p.w) + outer * p.w_batch[0] + inner * p.w_batch[1];
  const auto* x = static_cast<const uint16_t*>(p.x) + outer * p.x_batch[0] + inner * p.x_batch[1];
  const int tile = blockIdx.x;
  const int row0 = Traits::kRowStep == 8 ? tile / 8 * 8 * p.tile_rows + tile % 8 : tile * p.tile_rows;
  const int outputs = p.cols * p.tile_rows;
  float* const partial =
      p.partial + (static_cast<int64_t>(blockIdx.z) * gridDim.x + tile) * p.slices * COLS * p.tile_rows;
  const tile::BatchOffset offset = tile::batch_offset(p.epilogue, blockIdx.z);
  const auto finish = [&](int o, float sum) {
    const int col = o / p.tile_rows, row = row0 + (o - col * p.tile_rows) * Traits::kRowStep;
    if (row >= p.rows) return;
    float v[8] = {sum};
    if (p.swapped) {
      tile::finish<T>(p.epilogue, offset, row, col, {0, 1}, true, v);
    } else {
      tile::finish<T>(p.epilogue, offset, col, row, {0, 1}, true, v);
    }
  };

  // A block to a slice, or one to them all (counters.cu says when).
#pragma unroll 1
  for (int slice = blockIdx.y; slice < p.slices; slice += gridDim.y) {
    const int slice0 = slice * p.slice_k;
    Walk walk(p, w, row0, slice0, xs, sums);
    const int units = walk.units();
    Chunks chunks[DEPTH];
    ptx::grid_dependency_wait();
#pragma unroll
    for (int d = 0; d < DEPTH; ++d) walk.next(chunks[d]);
    if (slice != static_cast<int>(blockIdx.y)) __syncthreads();  // the slice before is added up
    stage_x<Traits>(p, x, slice0 - Walk::shift_of(p, w, row0), xs);
    if constexpr (Traits::kNarrow && !Traits::kKMajor) {
      if (threadIdx.x < kWarps) shifts[threadIdx.x] = Walk::shift_of(p, w, row0, threadIdx.x);
    }
    __syncthreads();

#pragma unroll 1
    for (int u = 0; u < units; u += DEPTH) {
#pragma unroll
      for (int d = 0; d < DEPTH; ++d) {
        if (u + d >= units) break;
        walk.add(chunks[d]);
        walk.next(chunks[d]);
      }
    }
    if (p.hurries_next) ptx::grid_launch_dependents();
    walk.end();
    __syncthreads();

    for (int o = threadIdx.x; o < outputs; o += kThreads) {
      const int col = o / p.tile_rows;
      const float sum = Walk::total(p, sums, shifts, o - col * p.tile_rows, col);
      if (p.slices == 1) {
        finish(o, sum);
      } else {
        partial[slice * outputs + o] = sum;
      }
    }
  }
  if (p.slices == 1) return;
  if (gridDim.y == 1) {
    __syncthreads();
  } else if (!arrives_last(p)) {
    return;
  }

  if (p.slices <= 16) {
    for (int o = threadIdx.x; o < outputs; o += kThreads) {
      float sum = 0.0f;
#pragma unroll 4
      for (int i = 0; i < p.slices; ++i) sum += ptx::ld_l2_4(partial + i * outputs + o);
      finish(o, sum);
    }
  } else {  // a warp to a sum
    for (int o = threadIdx.x / 32; o < outputs; o += kWarps) {
      float sum = 0.0f;
#pragma unroll 4
      for (int i = threadIdx.x % 32; i < p.slices; i += 32) sum += ptx::ld_l2_4(partial + i * outputs + o);
      for (int apart = 16; apart > 0; apart /= 2) sum += __shfl_xor_sync(~0u, sum, apart);
      if (threadIdx.x % 32 == 0) finish(o, sum);
    }
  }
}

}  // namespace hgemm::gemv
