// Activations as kernels of their own, for results of a GEMM without a fused epilogue, such as torch's.
#pragma once

#include "core/problem.h"

namespace hgemm {

/// Enqueues y[i] = act(x[i]) for `count` contiguous elements of float16, bfloat16 or float32. y may be x. In PyTorch:
/// act(x). Returns a cudaError_t. Implemented in kernels/activation.cu.
HGEMM_IN_CUDA(launch_activation(const void* x, void* y, int64_t count, DType dtype, Activation act, Stream stream))

/// Enqueues y[r][i] = act(x[r][i]) * x[r][n + i] for x (rows, 2 n) and y (rows, n), both contiguous, of float16,
/// bfloat16 or float32. In PyTorch: act(x[:, :n]) * x[:, n:]. Returns a cudaError_t.
HGEMM_IN_CUDA(launch_gate(const void* x, void* y, int64_t rows, int64_t n, DType dtype, Activation act, Stream stream))

/// Enqueues d[r] = act(d[r] + bias[g]) for the row r of a group g, whose end is the first of ends[0..groups-1] that is
/// larger. d: (rows, n) of row pitch `pitch`; bias: (groups, n), or null. Rows behind the last end stay as they are.
HGEMM_IN_CUDA(launch_finish_groups(void* d, int64_t rows, int64_t n, int64_t pitch, const int32_t* ends, int64_t groups,
                                   const void* bias, DType dtype, Activation act, Stream stream))

}  // namespace hgemm
