// Functions of the special function unit. Results are a few units in the last place off, and subnormals are flushed to
// zero.
// PTX ISA, "Floating Point Instructions: ex2, rcp", and "max" for NaN.
#pragma once

namespace hgemm::ptx {

/// ex2.approx: returns 2^x.
__device__ __forceinline__ float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;\n" : "=f"(y) : "f"(x));
  return y;
}

/// rcp.approx: returns 1 / x.
__device__ __forceinline__ float reciprocal_approx(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;\n" : "=f"(y) : "f"(x));
  return y;
}

/// max.NaN: returns the larger of two values, or NaN if either is NaN.
__device__ __forceinline__ float max_or_nan(float a, float b) {
  float y;
  asm("max.NaN.f32 %0, %1, %2;\n" : "=f"(y) : "f"(a), "f"(b));
  return y;
}

}  // namespace hgemm::ptx
