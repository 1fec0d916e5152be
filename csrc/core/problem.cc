#include "core/problem.h"

#include <utility>

namespace hgemm {

const char* layout_name(const Problem& p) {
  static constexpr const char* kNames[2][2] = {{"NT", "NN"}, {"TT", "TN"}};
  return kNames[static_cast<int>(p.a_major())][static_cast<int>(p.b_major())];
}

Problem without_epilogue(const Problem& p) {
  Problem product = p;
  product.act = Activation::kNone;
  product.bias = nullptr;
  product.pre_activation = nullptr;
  product.c = {};
  product.beta = 0.0f;
  return product;
}

Problem real_form(const Problem& p) {
  if (p.dtype != DType::kC64) return p;
  Problem real = p;
  real.n *= 2;
  real.k *= 2;
  real.dtype = real.out_dtype = real.c_dtype = DType::kF32;
  for (Matrix* x : {&real.a, &real.c, &real.d}) x->row_stride *= 2;
  for (Matrix* x : {&real.a, &real.b, &real.c, &real.d}) {
    for (int64_t& stride : x->batch_stride) stride *= 2;
  }
  real.is_real_form = true;
  return real;
}

uint32_t real_form_flips(const Problem& p) {
  if (!p.is_real_form) return 0;
  return uint32_t{p.conjugates_a == p.conjugates_b} << 1 | uint32_t{p.conjugates_b} << 2 |
         uint32_t{p.conjugates_a} << 3;
}

Problem as_called(const Problem& p) {
  Problem called = p;
  if (!p.rows_are_batch) return called;
  std::swap(called.m, called.batch[1]);
  for (Matrix* x : {&called.a, &called.c, &called.d}) std::swap(x->row_stride, x->batch_stride[1]);
  called.rows_are_batch = false;
  return called;
}

}  // namespace hgemm
