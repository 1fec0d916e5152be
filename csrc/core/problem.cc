#include "core/problem.h"

namespace hgemm {

int alignment_of(const Matrix& x, DType dtype, int64_t ld, int64_t batch_outer, int64_t batch_inner) {
  const uint64_t bytes = static_cast<uint64_t>(dtype_bytes(dtype));
  uint64_t bits = 16 | reinterpret_cast<uintptr_t>(x.data) | static_cast<uint64_t>(ld) * bytes;
  if (batch_outer > 1) bits |= static_cast<uint64_t>(x.batch_stride[0]) * bytes;
  if (batch_inner > 1) bits |= static_cast<uint64_t>(x.batch_stride[1]) * bytes;
  return static_cast<int>(bits & (~bits + 1));
}

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
