// A kernel that only reads memory. Benchmarks use it to measure the least time in which a GEMM can read its weights.
#pragma once

#include "core/problem.h"

namespace hgemm {

/// Enqueues a kernel that reads `bytes` bytes of device memory at `data`. Both must be multiples of 16. `sink` points
/// to 4 bytes of device memory, which the kernel may overwrite: without a possible store the compiler would drop the
/// loads. Returns a cudaError_t. Implemented in kernels/read.cu.
HGEMM_IN_CUDA(launch_read(const void* data, int64_t bytes, void* sink, Stream stream))

}  // namespace hgemm
