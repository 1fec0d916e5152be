// Conversions between float32 and the element types, and vectors of eight 16-bit elements.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <type_traits>

#include "core/problem.h"

namespace hgemm {

/// Converts an element to float32, exactly.
__device__ __forceinline__ float to_float(__half x) {
  return __half2float(x);
}
__device__ __forceinline__ float to_float(__nv_bfloat16 x) {
  return __bfloat162float(x);
}
__device__ __forceinline__ float to_float(float x) {
  return x;
}

/// Converts to T, rounding to nearest even.
template <class T>
__device__ __forceinline__ T from_float(float x);
template <>
__device__ __forceinline__ __half from_float<__half>(float x) {
  return __float2half_rn(x);
}
template <>
__device__ __forceinline__ __nv_bfloat16 from_float<__nv_bfloat16>(float x) {
  return __float2bfloat16_rn(x);
}
template <>
__device__ __forceinline__ float from_float<float>(float x) {
  return x;
}

/// Eight consecutive elements of 16 bits, aligned so that the compiler moves them with one 16-byte access.
template <class T>
struct alignas(16) Vec8 {
  T x[8];
};

/// The DType of an element type.
template <class T>
struct DTypeOf;
template <>
struct DTypeOf<__half> {
  static constexpr DType value = DType::kF16;
};
template <>
struct DTypeOf<__nv_bfloat16> {
  static constexpr DType value = DType::kBF16;
};

/// The element type of a DType that kernels take: kF16, kBF16 or kF32.
template <DType kDType>
using ElementOf =
    std::conditional_t<kDType == DType::kF32, float, std::conditional_t<kDType == DType::kF16, __half, __nv_bfloat16>>;

}  // namespace hgemm
