// torch's plain products on the short way: cuBLAS as torch.mm calls it, without what the host does before and within.
#pragma once

#include "torch/call.h"

namespace hgemm {

/// What torch.mm gives. For a plain product torch.mm calls cublasGemmEx, which asks the heuristic of cuBLASLt for an
/// algorithm in every call and runs the first; here its answer is remembered, per thread, for as long as shapes repeat.
/// `canonical` is that of the call, with a result that is not empty; the device of the call must be the current one.
/// Null where torch would not make that call, or it is not known to: batches, vectors, sums and conversions, operands
/// that need a copy, any setting of torch's that chooses another library, algorithm or precision, and a torch without
/// the symbols that tell.
Handle cublas_product(const Call& call, const Canonical& canonical, const DeviceFacts& facts);

}  // namespace hgemm
