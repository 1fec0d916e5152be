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
  int64_t swizzle_stride = 0;
  bool static_weights = false;

  int32_t result_dtype() const { return out_dtype.value_or(a.dtype); }
  Operands operands(int max_batch_dims) const;
};

/// A call whose tensors stay with whoever makes it.
struct LentCall : Call {
  explicit LentCall(Op op) { this->op = op; }
  ~LentCall() {
    for (Tensor* t : {&a, &b, &c}) static_cast<void>(t->handle.release());
  }
  LentCall(const LentCall&) = delete;
  LentCall& operator=(const LentCall&) = delete;

  static void lend(AtenTensorHandle handle, Tensor* to) {
    *to = look_at(handle);
    to->handle.reset(handle);
  }
};

/// Where results go: contiguous, of the output's shape and dtype.
struct Destination {
  AtenTensorHandle handle = nullptr;  // null: not wanted
  void* data = nullptr;
};

/// The CUDA implementation of the ops that return one new tensor (ops.cc).
Handle run(const Call& call);

}  // namespace hgemm
