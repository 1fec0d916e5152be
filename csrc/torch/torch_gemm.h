// A call served by torch's own GEMM: what the dispatcher leaves to it, and every dtype that kernels do not know.
#pragma once

#include "torch/call.h"

namespace hgemm {

/// `canonical` is that of the call, with a result that is not empty. The device of the call must be the current one.
void torch_gemm(const Call& call, const Canonical& canonical, Destination d, Destination pre_activation);

}  // namespace hgemm
