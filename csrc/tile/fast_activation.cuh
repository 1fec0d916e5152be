// Activations for results that are rounded to 16 bits. They evaluate torch's definitions on the special function unit,
// without branches. The error is at most 1e-6 of the result, or 1e-7 of the argument; NaN and infinities are as in
// torch.
#pragma once

#include "core/problem.h"
#include "ptx/approx.cuh"

namespace hgemm::tile {

/// The cumulative normal distribution at -|x|, at most 7.5e-8 off (Abramowitz and Stegun, 7.1.26).
__device__ __forceinline__ float normal_tail(float x) {
  constexpr float kHalfLog2E = 0.72134752044f, kInvSqrt2 = 0.70710678119f;
  const float t = ptx::reciprocal_approx(fmaf(0.3275911f * kInvSqrt2, fabsf(x), 1.0f));
  float poly = fmaf(t, 0.5f * 1.061405429f, 0.5f * -1.453152027f);
  poly = fmaf(t, poly, 0.5f * 1.421413741f);
  poly = fmaf(t, poly, 0.5f * -0.284496736f);
  poly = fmaf(t, poly, 0.5f * 0.254829592f);
  return t * poly * ptx::exp2_approx(x * x * -kHalfLog2E);
}

/// Returns x / (1 + 2^-y), which is x times the logistic function of y * log 2.
__device__ __forceinline__ float times_logistic(float x, float y) {
  return x * ptx::reciprocal_approx(1.0f + ptx::exp2_approx(-y));
}

template <Activation kAct>
__device__ __forceinline__ float fast_activate(float x) {
  constexpr float kLog2E = 1.44269504089f;
  if constexpr (kAct == Activation::kRelu) {
    return x <= 0.0f ? 0.0f : x;  // -0 becomes 0, as by max
  } else if constexpr (kAct == Activation::kGelu) {
    const float tail = normal_tail(x);
    return x * (x < 0.0f ? tail : 1.0f - tail);
  } else if constexpr (kAct == Activation::kGeluTanh) {
    constexpr float kScale = 2.0f * 0.79788456080f * kLog2E;  // 1 + tanh(u) = 2 / (1 + exp(-2 u))
    return times_logistic(x, x * fmaf(0.044715f * kScale, x * x, kScale));
  } else {
    static_assert(kAct == Activation::kSilu);
    return times_logistic(x, kLog2E * x);
  }
}

}  // namespace hgemm::tile
