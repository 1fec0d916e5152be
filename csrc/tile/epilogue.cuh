// What happens to an accumulator on its way to memory: D = act(alpha * acc + beta * C + bias), in fp32.
#pragma once

#include <cstdint>

#include "core/convert.cuh"
#include "core/problem.h"

namespace hgemm::tile {

/// The run-time side of the epilogue. Every flag is uniform over the grid, so the branches cost an instruction each.
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
  bool wide_d, wide_c, wide_bias;  // 16-byte accesses are legal at columns that are multiples of 8
  float* partial;                  // split-K: raw sums go here, (splits, batches, m, n); nothing else is applied
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
  e.alpha = p.alpha;
  e.beta = p.beta;
  e.act = p.act;
  e.out_f32 = p.out_dtype == DType::kF32;
  e.c_f32 = p.c_dtype == DType::kF32;
  e.wide_d = alignment_d(p) == 16 && aligned16(p.pre_activation);
  e.wide_c = e.c != nullptr && !e.c_f32 && p.c.col_stride == 1 &&
             alignment_of(p.c, p.c_dtype, p.c.row_stride, p.batch[0], p.batch[1]) == 16;
  e.wide_bias = aligned16(p.bias);
  e.partial = partial;
  return e;
}

/// torch's definitions, in fp32. NaN passes through every one of them.
__device__ __forceinline__ float activate(float x, Activation act) {
  switch (act) {
    case Activation::kRelu: return x < 0.0f ? 0.0f : x;
    case Activation::kGelu: return 0.5f * x * (1.0f + erff(x * 0.70710678118654752f));
    case Activation::kGeluTanh: return 0.5f * x * (1.0f + tanhf(0.79788456080286536f * (x + 0.044715f * x * x * x)));
    case Activation::kSilu: return x / (1.0f + expf(-x));
    default: return x;
  }
}

/// Adds scale * src[0..count) to v.
template <class T>
__device__ __forceinline__ void add_scaled(float (&v)[8], const T* src, int64_t stride, int count, bool wide,
                                           float scale) {
  if (wide && count == 8) {
    const Vec8<T> x = *reinterpret_cast<const Vec8<T>*>(src);
#pragma unroll
    for (int i = 0; i < 8; ++i) v[i] += scale * to_float(x.x[i]);
  } else {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if (i < count) v[i] += scale * to_float(src[i * stride]);
    }
  }
}

template <class T>
__device__ __forceinline__ void store8(T* dst, const float (&v)[8], int count, bool wide) {
  if (wide && count == 8) {
    Vec8<T> x;
#pragma unroll
    for (int i = 0; i < 8; ++i) x.x[i] = from_float<T>(v[i]);
    *reinterpret_cast<Vec8<T>*>(dst) = x;
  } else {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if (i < count) dst[i] = from_float<T>(v[i]);
    }
  }
}

/// Finishes eight consecutive columns of one row: `acc` holds A @ B at (row, col .. col + 7). col is a multiple of 8.
template <class T>
__device__ __forceinline__ void finish8(const EpilogueParams& e, int64_t batch, int64_t row, int64_t col,
                                        float (&acc)[8]) {
  const int count = static_cast<int>(min(e.n - col, static_cast<int64_t>(8)));
  const int64_t outer = batch / e.batch_inner, inner = batch - outer * e.batch_inner;
#pragma unroll
  for (int i = 0; i < 8; ++i) acc[i] *= e.alpha;
  if (e.c != nullptr) {
    const int64_t at = outer * e.c_batch[0] + inner * e.c_batch[1] + row * e.c_row + col * e.c_col;
    if (e.c_f32) {
      add_scaled(acc, static_cast<const float*>(e.c) + at, e.c_col, count, false, e.beta);
    } else {
      add_scaled(acc, static_cast<const T*>(e.c) + at, e.c_col, count, e.wide_c, e.beta);
    }
  }
  if (e.bias != nullptr) add_scaled(acc, static_cast<const T*>(e.bias) + col, 1, count, e.wide_bias, 1.0f);

  const int64_t at = outer * e.d_batch[0] + inner * e.d_batch[1] + row * e.ldd + col;
  if (e.pre_activation != nullptr) {
    if (e.out_f32) {
      store8(static_cast<float*>(e.pre_activation) + at, acc, count, e.wide_d);
    } else {
      store8(static_cast<T*>(e.pre_activation) + at, acc, count, e.wide_d);
    }
  }
  if (e.act != Activation::kNone) {
#pragma unroll
    for (int i = 0; i < 8; ++i) acc[i] = activate(acc[i], e.act);
  }
  if (e.out_f32) {
    store8(static_cast<float*>(e.d) + at, acc, count, e.wide_d);
  } else {
    store8(static_cast<T*>(e.d) + at, acc, count, e.wide_d);
  }
}

/// Either finishes eight columns or, under split-K, parks their raw sums.
template <class T>
__device__ __forceinline__ void emit8(const EpilogueParams& e, int64_t batch, int64_t batches, int split, int64_t row,
                                      int64_t col, float (&acc)[8]) {
  if (e.partial == nullptr) {
    finish8<T>(e, batch, row, col, acc);
  } else {
    const int count = static_cast<int>(min(e.n - col, static_cast<int64_t>(8)));
    float* dst = e.partial + ((split * batches + batch) * e.m + row) * e.n + col;
    store8(dst, acc, count, e.n % 4 == 0);
  }
}

}  // namespace hgemm::tile
