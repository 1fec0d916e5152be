// One call of an op, as its schema gives it.
#pragma once

#include <optional>

#include "torch/tensor_access.h"

namespace hgemm {

struct Call {
  Op op = Op::kMatmul;
  Tensor a, b, c, out;  // c and out may be empty
  double alpha = 1.0, beta = 1.0;
  int64_t act = 0;
  std::optional<int32_t> out_dtype;  // torch's code
  int64_t variant = kAuto;
  int64_t numerics = kAuto;  // a NumericsMode
  int64_t float32 = kAuto;   // a Float32Mode
  int64_t swizzle_stride = 0;

  int32_t result_dtype() const { return out_dtype.value_or(a.dtype); }
  Operands operands(int max_batch_dims) const;
};

/// Where results go: contiguous, of the output's shape and dtype.
struct Destination {
  AtenTensorHandle handle = nullptr;  // null: not wanted
  void* data = nullptr;
};

}  // namespace hgemm
