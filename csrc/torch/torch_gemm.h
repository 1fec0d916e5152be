// One call of an op, with the arguments of its schema, and torch's own GEMM for it. Torch computes the calls that the
// dispatcher leaves to it, and those of dtypes that no kernel takes.
#pragma once

#include <optional>

#include "torch/tensor_access.h"

namespace hgemm {

/// The arguments of a call.
struct Call {
  Op op = Op::kMatmul;
  Tensor a, b, c, out;  // c and out may be empty
  double alpha = 1.0, beta = 1.0;
  int64_t act = 0;
  std::optional<int32_t> out_dtype;  // torch's code of a dtype
  int64_t variant = kAuto;
  int64_t numerics = kAuto;  // a NumericsMode
  int64_t float32 = kAuto;   // a Float32Mode

  int32_t result_dtype() const { return out_dtype.value_or(a.dtype); }
  Operands operands(int max_batch_dims) const;
};

/// A tensor that a result is written to: contiguous, with the output's shape and dtype.
struct Destination {
  AtenTensorHandle handle = nullptr;  // null: this result is not wanted
  void* data = nullptr;
};

/// A new reference to a tensor, for the stack of a dispatcher call, which consumes it.
inline AtenTensorHandle new_reference(AtenTensorHandle handle) {
  AtenTensorHandle copy = nullptr;
  check(aoti_torch_new_tensor_handle(handle, &copy), "new_tensor_handle");
  return copy;
}

/// Computes a call with torch. `canonical` is that of the call; its result must not be empty. If `pre_activation` is
/// wanted, it receives the argument of the activation. The device of the call must be the current one.
void torch_gemm(const Call& call, const Canonical& canonical, Destination d, Destination pre_activation);

/// Computes d = act(y[:, :n]) * y[:, n:] with torch: y (rows, 2 n), d (rows, n), both contiguous. It is for dtypes, and
/// for devices, that no kernel of ours runs with.
void torch_gate(Activation act, Device device, Destination y, Destination d, int64_t rows, int64_t n);

}  // namespace hgemm
