// An activation by itself, for results that a GEMM without an epilogue (torch's) has written.
#pragma once

#include "core/problem.h"

namespace hgemm {

/// y[i] = act(x[i]) for `count` contiguous elements; y may be x. Returns a cudaError_t.
/// Implemented in kernels/activation.cu.
HGEMM_IN_CUDA(launch_activation(const void* x, void* y, int64_t count, DType dtype, Activation act, Stream stream))

/// y[r][i] = act(x[r][i]) * x[r][n + i]: x (rows, 2 n), y (rows, n), both contiguous. Returns a cudaError_t.
HGEMM_IN_CUDA(launch_gate(const void* x, void* y, int64_t rows, int64_t n, DType dtype, Activation act, Stream stream))

}  // namespace hgemm
