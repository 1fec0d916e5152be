// What the host side (variants.cc) and the CUDA side of the kernel for unaligned rows with batch-invariant sums share:
// its constants and the launcher.
#pragma once

#include "core/problem.h"
#include "core/slices.h"

namespace hgemm::skinny {

/// Two warps for each slice of K.
constexpr int kInOrderThreads = 64 * kSlices;

/// Rows of x, at most.
constexpr int kInOrderCols = 8;

/// The rows of W in a tile, and the units of W that a warp keeps in flight: K-major and MN-major.
constexpr int kInOrderRowsK = 16, kInOrderRowsMN = 56;
constexpr int kInOrderDepthK = 2, kInOrderDepthMN = 3;

/// Bytes of shared memory per block, at most: for each slice, 64 rows of sums and the accumulators that 32 lanes hand
/// on.
constexpr int kInOrderSmemBytes = kSlices * (kInOrderCols * 64 * 4 + 4 * 32 * 16);

/// Enqueues the GEMM, which has at most kInOrderCols rows or columns, and returns a cudaError_t. in_order.cu defines
/// the function.
HGEMM_IN_CUDA(launch_in_order(const Problem& p, Stream stream))

}  // namespace hgemm::skinny
