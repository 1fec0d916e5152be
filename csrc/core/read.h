// Reading memory and nothing else: the least time in which a kernel can go through its weights.
#pragma once

#include "core/problem.h"

namespace hgemm {

/// Reads `bytes` of device memory at `data`, both multiples of 16. `sink`, 4 bytes of device memory, may be written.
/// Returns a cudaError_t. Implemented in kernels/read.cu.
HGEMM_IN_CUDA(launch_read(const void* data, int64_t bytes, void* sink, Stream stream))

}  // namespace hgemm
