#include "core/problem.h"

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

}  // namespace hgemm
