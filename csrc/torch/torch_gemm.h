// A call served by torch's own GEMM: what the dispatcher leaves to it, and every dtype that kernels do not know.
#pragma once

#include "torch/call.h"

namespace hgemm {

/// Whether the call is aten's mm or bmm and no more, but for a view of linear's weight, and its result by that op. For
/// the host this is cheaper than memory of ours, which the stable ABI allocates through torch's dispatcher. (aten's
/// composites matmul and linear are not.)
bool is_aten_product(const Call& call);
Handle aten_product(const Call& call);

/// Into memory of ours. `canonical` is that of the call, with a result that is not empty; the device of the call must
/// be the current one.
void torch_gemm(const Call& call, const Canonical& canonical, Destination d, Destination pre_activation);

/// d = act(y[:, :n]) * y[:, n:]: y (rows, 2 n), d (rows, n), both contiguous and of a dtype that kernels do not know.
void torch_gate(Activation act, Destination y, Destination d, int64_t rows, int64_t n);

}  // namespace hgemm
