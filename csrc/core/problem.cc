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

Problem as_called(const Problem& p) {
  Problem called = p;
  if (!p.rows_are_batch) return called;
  std::swap(called.m, called.batch[1]);
  for (Matrix* x : {&called.a, &called.c, &called.d}) std::swap(x->row_stride, x->batch_stride[1]);
  called.rows_are_batch = false;
  return called;
}

}  // namespace hgemm
