// How tiny_batch multiplies and adds up elements of a type: 16-bit ones and float32 in float32, float64 in float64,
// complex64 in pairs of float32.
#pragma once

#include <type_traits>

#include "core/convert.cuh"
#include "core/problem.h"

namespace hgemm::tiny_batch {

/// An element of complex64.
struct alignas(8) Complex {
  float re, im;
};

/// The element type of a DType that tiny_batch takes.
template <DType kDType>
using Element = std::conditional_t<kDType == DType::kF64, double,
                                   std::conditional_t<kDType == DType::kC64, Complex, ElementOf<kDType>>>;

/// The arithmetic of a type. Real: the type of alpha and beta. Value: an element in registers, or a sum in shared
/// memory. Sum: an accumulator.
template <class T>
struct Numbers {
  using Real = float;
  using Value = float;
  using Sum = float;

  static __device__ __forceinline__ Value value(T x, bool) { return to_float(x); }
  static __device__ __forceinline__ void add(Sum& sum, Value a, Value b) { sum = fmaf(a, b, sum); }
  /// scale * sum, rounded to Out.
  template <class Out>
  static __device__ __forceinline__ Out result(Sum sum, Real scale) {
    return from_float<Out>(scale * sum);
  }
  static __device__ __forceinline__ Value times(Real scale, Value x) { return scale * x; }
  /// scale * x + y, rounded once.
  static __device__ __forceinline__ Value plus(Real scale, Value x, Value y) { return fmaf(scale, x, y); }
};

template <>
struct Numbers<double> {
  using Real = double;
  using Value = double;
  using Sum = double;

  static __device__ __forceinline__ Value value(double x, bool) { return x; }
  static __device__ __forceinline__ void add(Sum& sum, Value a, Value b) { sum = fma(a, b, sum); }
  template <class Out>
  static __device__ __forceinline__ Out result(Sum sum, Real scale) {
    return scale * sum;
  }
  static __device__ __forceinline__ Value times(Real scale, Value x) { return scale * x; }
  static __device__ __forceinline__ Value plus(Real scale, Value x, Value y) { return fma(scale, x, y); }
};

template <>
struct Numbers<Complex> {
  using Real = float;
  using Value = Complex;
  /// Two sums make the imaginary part. So elements (i, j) and (j, i) of x @ x.T have the same bits, and those of
  /// x @ x.conj().T are conjugates of each other.
  struct Sum {
    float re, re_im, im_re;
  };

  static __device__ __forceinline__ Value value(Complex x, bool conjugates) {
    const int sign = conjugates ? static_cast<int>(0x80000000u) : 0;
    return {x.re, __int_as_float(__float_as_int(x.im) ^ sign)};
  }
  static __device__ __forceinline__ void add(Sum& sum, Value a, Value b) {
    sum.re = fmaf(a.re, b.re, sum.re);
    sum.re_im = fmaf(a.re, b.im, sum.re_im);
    sum.im_re = fmaf(a.im, b.re, sum.im_re);
    sum.re = fmaf(-a.im, b.im, sum.re);
  }
  template <class Out>
  static __device__ __forceinline__ Out result(Sum sum, Real scale) {
    return {scale * sum.re, scale * (sum.re_im + sum.im_re)};
  }
  static __device__ __forceinline__ Value times(Real scale, Value x) { return {scale * x.re, scale * x.im}; }
  static __device__ __forceinline__ Value plus(Real scale, Value x, Value y) {
    return {fmaf(scale, x.re, y.re), fmaf(scale, x.im, y.im)};
  }
};

}  // namespace hgemm::tiny_batch
