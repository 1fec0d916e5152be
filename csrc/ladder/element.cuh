// Number types of the CUDA-core steps. Each kernel body is written once; its Element says what it computes in.
#pragma once

#include <cuda_fp16.h>

#include "core/problem.h"

namespace hgemm::ladder {

/// N consecutive elements that one access moves.
template <class T, int N>
struct alignas(N * sizeof(T)) Pack {
  T x[N];
};

__device__ __forceinline__ float mul_add(float a, float b, float c) {
  return fmaf(a, b, c);
}
__device__ __forceinline__ __half mul_add(__half a, __half b, __half c) {
  return __hfma(a, b, c);
}
__device__ __forceinline__ __half2 mul_add(__half2 a, __half2 b, __half2 c) {
  return __hfma2(a, b, c);
}

/// T is the type in memory and Sum the accumulator of a single element. One FMA instruction works on a Lane, which is
/// kLanes consecutive elements of a row of C.
template <DType kType, Arithmetic kArithmetic>
struct Element;

template <>
struct Element<DType::kF32, Arithmetic::kAccumulateF32> {
  using T = float;
  using Sum = float;
  using Lane = float;
  static constexpr int kLanes = 1;
  static __device__ __forceinline__ Lane splat(T x) { return x; }
  static __device__ __forceinline__ Lane lane(const T* x) { return x[0]; }
  static __device__ __forceinline__ T element(Lane v, int) { return v; }
};

/// HFMA2 has twice the rate of FFMA, and rounds to 11 bits with every term that it adds.
template <>
struct Element<DType::kF16, Arithmetic::kAccumulateF16> {
  using T = __half;
  using Sum = __half;
  using Lane = __half2;
  static constexpr int kLanes = 2;
  static __device__ __forceinline__ Lane splat(T x) { return __half2half2(x); }
  static __device__ __forceinline__ Lane splat(Lane x) { return x; }
  static __device__ __forceinline__ Lane lane(const T* x) { return __halves2half2(x[0], x[1]); }
  static __device__ __forceinline__ T element(Lane v, int i) { return i == 0 ? __low2half(v) : __high2half(v); }
};

/// float16 in memory, FFMA for the math: every operand is converted after it is read from shared memory.
template <>
struct Element<DType::kF16, Arithmetic::kAccumulateF32> {
  using T = __half;
  using Sum = float;
  using Lane = float;
  static constexpr int kLanes = 1;
  static __device__ __forceinline__ Lane splat(T x) { return __half2float(x); }
  static __device__ __forceinline__ Lane splat(Lane x) { return x; }
  static __device__ __forceinline__ Lane lane(const T* x) { return __half2float(x[0]); }
  static __device__ __forceinline__ T element(Lane v, int) { return __float2half_rn(v); }
};

}  // namespace hgemm::ladder
