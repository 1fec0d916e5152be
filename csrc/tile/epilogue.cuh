// The epilogue: D = act(alpha * acc + beta * C + bias), computed in float32.
#pragma once

#include <cstdint>

#include "core/convert.cuh"
#include "core/problem.h"

namespace hgemm::tile {

/// The parameters of the epilogue that are known at run time. Every flag is uniform over the grid, so each branch costs
/// one instruction.
struct EpilogueParams {
  int64_t m, n;
  int64_t batch_inner;
  void* d;
  void* pre_activation;
  const void* c;
  const void* bias;
  int64_t ldd, d_batch[2];
  int64_t c_row, c_col, c_batch[2];
  float alpha, beta;
  Activation act;
  bool out_f32, c_f32;
  bool wide_d, wide_c, wide_bias;  // 16-byte accesses are allowed at columns that are multiples of 8
  bool pre_in_phase;               // pre_activation and D have the same address modulo 16
  float* partial;                  // split-K: (splits, batches, m, n) for raw accumulators; then no epilogue is applied
};

inline bool aligned16(const void* p) {
  return reinterpret_cast<uintptr_t>(p) % 16 == 0;
}

inline EpilogueParams epilogue_params(const Problem& p, float* partial) {
  EpilogueParams e{};
  e.m = p.m;
  e.n = p.n;
  e.batch_inner = p.batch[1];
  e.d = p.d.data;
  e.pre_activation = p.pre_activation;
  e.c = p.beta != 0.0f ? p.c.data : nullptr;  // beta = 0 ignores C, NaN included
  e.bias = p.bias;
  e.ldd = p.d.row_stride;
  e.c_row = p.c.row_stride;
  e.c_col = p.c.col_stride;
  for (int i = 0; i < 2; ++i) {
    e.d_batch[i] = p.d.batch_stride[i];
    e.c_batch[i] = p.c.batch_stride[i];
  }
  e.alpha = static_cast<float>(p.alpha);
  e.beta = static_cast<float>(p.beta);
  e.act = p.act;
  e.out_f32 = p.out_dtype == DType::kF32;
  e.c_f32 = p.c_dtype == DType::kF32;
  e.wide_d = alignment_d(p) == 16;
  e.pre_in_phase = (reinterpret_cast<uintptr_t>(p.d.data) ^ reinterpret_cast<uintptr_t>(p.pre_activation)) % 16 == 0;
  e.wide_c = e.c != nullptr && !e.c_f32 && p.c.col_stride == 1 &&
             alignment_of(p.c, p.c_dtype, p.c.row_stride, p.batch[0], p.batch[1]) == 16;
  e.wide_bias = aligned16(p.bias);
  e.partial = partial;
  return e;
}

/// Applies an activation by torch's definition, in float32. NaN stays NaN in every activation.
__device__ __forceinline__ float activate(float x, Activation act) {
  switch (act) {
    case Activation::kRelu: return x <= 0.0f ? 0.0f : x;  // -0 becomes 0, as by max
    case Activation::kGelu: return 0.5f * x * (1.0f + erff(x * 0.70710678118654752f));
    case Activation::kGeluTanh: return 0.5f * x * (1.0f + tanhf(0.79788456080286536f * (x + 0.044715f * x * x * x)));
    case Activation::kSilu: return x / (1.0f + expf(-x));
    default: return x;
  }
}

/// The elements lo..hi-1 of a group of eight.
struct Span {
  int lo, hi;
  __device__ __forceinline__ bool whole() const { return lo == 0 && hi == 8; }
  __device__ __forceinline__ bool holds(int i) const { return lo <= i && i < hi; }
};

/// Adds scale * src to the elements of v in `span`, in 16-byte accesses if `wide` and the span is whole. The explicit
/// fmaf rounds once, whatever computed v. Without it, the compiler might fuse the multiplication that made v instead.
template <class T>
__device__ __forceinline__ void add_scaled(float (&v)[8], const T* src, int64_t stride, Span span, bool wide,
                                           float scale) {
  if (wide && span.whole()) {
    const Vec8<T> x = *reinterpret_cast<const Vec8<T>*>(src);
#pragma unroll
    for (int i = 0; i < 8; ++i) v[i] = fmaf(scale, to_float(x.x[i]), v[i]);
  } else {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if (span.holds(i)) v[i] = fmaf(scale, to_float(src[i * stride]), v[i]);
    }
  }
}

template <class T>
__device__ __forceinline__ void store(T* dst, const float (&v)[8], Span span, bool wide) {
  if (wide && span.whole()) {
    Vec8<T> x;
#pragma unroll
    for (int i = 0; i < 8; ++i) x.x[i] = from_float<T>(v[i]);
    *reinterpret_cast<Vec8<T>*>(dst) = x;
  } else {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if (span.holds(i)) dst[i] = from_float<T>(v[i]);
    }
  }
}

/// The offsets of a batch in D and C, in elements. They are computed once, since a 64-bit division is too expensive for
/// every row.
struct BatchOffset {
  int64_t d, c;
};

__device__ __forceinline__ BatchOffset batch_offset(const EpilogueParams& e, int64_t batch) {
  const int64_t outer = batch / e.batch_inner, inner = batch - outer * e.batch_inner;
  return {outer * e.d_batch[0] + inner * e.d_batch[1], outer * e.c_batch[0] + inner * e.c_batch[1]};
}

/// Applies the epilogue to columns col + span of one row and stores them. `acc` holds A @ B of these columns.
/// `on_grid`: col is a multiple of 8. Otherwise D's address at (row, col) is a multiple of 16 bytes.
template <class T>
__device__ __forceinline__ void finish(const EpilogueParams& e, BatchOffset offset, int64_t row, int64_t col, Span span,
                                       bool on_grid, float (&acc)[8]) {
#pragma unroll
  for (int i = 0; i < 8; ++i) acc[i] *= e.alpha;
  if (e.c != nullptr) {
    const int64_t at = offset.c + row * e.c_row + col * e.c_col;
    if (e.c_f32) {
      add_scaled(acc, static_cast<const float*>(e.c) + at, e.c_col, span, false, e.beta);
    } else {
      add_scaled(acc, static_cast<const T*>(e.c) + at, e.c_col, span, e.wide_c && on_grid, e.beta);
    }
  }
  if (e.bias != nullptr) {
    add_scaled(acc, static_cast<const T*>(e.bias) + col, 1, span, e.wide_bias && on_grid, 1.0f);
  }

  const int64_t at = offset.d + row * e.ldd + col;
  const bool wide = !on_grid || e.wide_d;
  if (e.pre_activation != nullptr) {
    if (e.out_f32) {
      store(static_cast<float*>(e.pre_activation) + at, acc, span, wide && e.pre_in_phase);
    } else {
      store(static_cast<T*>(e.pre_activation) + at, acc, span, wide && e.pre_in_phase);
    }
  }
  if (e.act != Activation::kNone) {
#pragma unroll
    for (int i = 0; i < 8; ++i) acc[i] = activate(acc[i], e.act);
  }
  if (e.out_f32) {
    store(static_cast<float*>(e.d) + at, acc, span, wide);
  } else {
    store(static_cast<T*>(e.d) + at, acc, span, wide);
  }
}

/// Whether finish_common() does what finish() does, for whole groups of eight columns: D is aligned and has the type of
/// the operands, and nothing but a bias is added.
__device__ __forceinline__ bool is_common(const EpilogueParams& e) {
  return e.wide_d && !e.out_f32 && e.n % 8 == 0 && e.c == nullptr && e.pre_activation == nullptr &&
         e.act == Activation::kNone && (e.bias == nullptr || e.wide_bias);
}

/// finish() where is_common(): little code, so that loops around it can be unrolled.
template <class T>
__device__ __forceinline__ void finish_common(const EpilogueParams& e, BatchOffset offset, int64_t row, int64_t col,
                                              float (&acc)[8]) {
#pragma unroll
  for (int i = 0; i < 8; ++i) acc[i] *= e.alpha;
  if (e.bias != nullptr) add_scaled(acc, static_cast<const T*>(e.bias) + col, 1, Span{0, 8}, true, 1.0f);
  store(static_cast<T*>(e.d) + offset.d + row * e.ldd + col, acc, Span{0, 8}, true);
}

/// The number of elements from the preceding multiple of 16 bytes to D's address at (row, col).
template <class T>
__device__ __forceinline__ int elements_off_grid(const EpilogueParams& e, BatchOffset offset, int64_t row,
                                                 int64_t col) {
  const int64_t at = offset.d + row * e.ldd + col;
  const int size = e.out_f32 ? 4 : static_cast<int>(sizeof(T));
  return static_cast<int>((reinterpret_cast<uint64_t>(e.d) + at * size) % 16) / size;
}

/// Loads eight floats from an address that is a multiple of 16 bytes.
__device__ __forceinline__ void load8(float (&v)[8], const float* from) {
  const float4 low = reinterpret_cast<const float4*>(from)[0], high = reinterpret_cast<const float4*>(from)[1];
  v[0] = low.x, v[1] = low.y, v[2] = low.z, v[3] = low.w;
  v[4] = high.x, v[5] = high.y, v[6] = high.z, v[7] = high.w;
}

/// Applies the epilogue to a (ROWS, COLS) slice of accumulators that a warp has put into shared memory, with `stride`
/// floats per row. The slice starts at (row0, col0) of D, and col0 is a multiple of 8. Under split-K the raw
/// accumulators are stored in `partial`, (m, n), instead. `kUnrolls`: there are registers for an unrolled loop over the
/// slice, which the common epilogue then has.
template <class T, int ROWS, int COLS, bool kUnrolls = true>
__device__ __forceinline__ void emit_slice(const EpilogueParams& e, BatchOffset offset, float* partial, int64_t row0,
                                           int64_t col0, const float* slice, int stride) {
  const int lane = threadIdx.x % 32;
  const int rows = static_cast<int>(min(e.m - row0, static_cast<int64_t>(ROWS)));
  const int cols = static_cast<int>(min(e.n - col0, static_cast<int64_t>(COLS)));
  constexpr int kGroups = COLS / 8;
  if (kUnrolls && partial == nullptr && is_common(e)) {
#pragma unroll 4
    for (int i = lane; i < ROWS * kGroups; i += 32) {
      const int r = i / kGroups, c = i % kGroups * 8;
      if (r >= rows || c >= cols) continue;
      float v[8];
      load8(v, slice + r * stride + c);
      finish_common<T>(e, offset, row0 + r, col0 + c, v);
    }
    return;
  }
  // The rows of D may start at any address. Where they are not aligned, groups of eight columns follow D's 16-byte grid
  // instead of the tile's. So all groups of a row but the first and the last are stored whole, and there is one more.
  const bool on_grid = partial != nullptr || e.wide_d;
#pragma unroll 1  // finish() is most of a kernel's code: one copy of it halves the time to compile batched_mma
  for (int i = lane;; i += 32) {
    const int r = on_grid ? i / kGroups : i / (kGroups + 1);
    if (r >= rows) break;
    const int group = on_grid ? i - r * kGroups : i - r * (kGroups + 1);
    const int c = group * 8 - (on_grid ? 0 : elements_off_grid<T>(e, offset, row0 + r, col0));
    const Span span{max(-c, 0), min(cols - c, 8)};
    if (span.lo >= span.hi) continue;
    const float* const from = slice + r * stride + c;
    float v[8];
    if (on_grid) {  // the slice is wide enough for all eight
      load8(v, from);
    } else {
#pragma unroll
      for (int j = 0; j < 8; ++j) v[j] = span.holds(j) ? from[j] : 0.0f;
    }
    if (partial == nullptr) {
      finish<T>(e, offset, row0 + r, col0 + c, span, on_grid, v);
    } else {
      store(partial + (row0 + r) * e.n + col0 + c, v, span, e.n % 4 == 0);
    }
  }
}

/// emit_slice for one batch, and under split-K for slice `split` of K.
template <class T, int ROWS, int COLS>
__device__ __forceinline__ void emit_slice(const EpilogueParams& e, int64_t batch, int64_t batches, int split,
                                           int64_t row0, int64_t col0, const float* slice, int stride) {
  float* const partial = e.partial == nullptr ? nullptr : e.partial + (split * batches + batch) * e.m * e.n;
  emit_slice<T, ROWS, COLS>(e, batch_offset(e, batch), partial, row0, col0, slice, stride);
}

}  // namespace hgemm::tile
