// One call of an op, as its schema gives it, and its way to torch's own GEMM: what the dispatcher leaves to torch, and
// every dtype that kernels do not know.
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

  int32_t result_dtype() const { return out_dtype.value_or(a.dtype); }
  Operands operands(int max_batch_dims) const;
};

/// Where results go: contiguous, of the output's shape and dtype.
struct Destination {
  AtenTensorHandle handle = nullptr;  // null: not wanted
  void* data = nullptr;
};

/// `canonical` is that of the call, with a result that is not empty; the device of the call must be the current one.
void torch_gemm(const Call& call, const Canonical& canonical, Destination d, Destination pre_activation);

/// d = act(y[:, :n]) * y[:, n:]: y (rows, 2 n), d (rows, n), both contiguous and of a dtype that kernels do not know.
void torch_gate(Activation act, Destination y, Destination d, int64_t rows, int64_t n);

}  // namespace hgemm
