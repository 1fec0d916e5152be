// A call served by torch's own GEMM: what the dispatcher leaves to it, and every dtype that kernels do not know.
#pragma once

#include "torch/call.h"

namespace hgemm {

/// `canonical` is that of the call, with a result that is not empty; the device of the call must
/// be the current one.
void torch_gemm(const Call& call, const Canonical& canonical, Destination d, Destination pre_activation);

/// d = act(y[:, :n]) * y[:, n:]: y (rows, 2 n), d (rows, n), both contiguous and of a dtype that kernels do not know.
void torch_gate(Activation act, Destination y, Destination d, int64_t rows, int64_t n);

}  // namespace hgemm
