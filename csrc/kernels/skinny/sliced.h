// What the host side (variants.cc) and the CUDA side of the kernel with sums in slices share: its constants and the
// launcher.
#pragma once

#include "core/problem.h"
#include "core/slices.h"

namespace hgemm::skinny {

/// A warp for each slice of K.
constexpr int kSlicedThreads = 32 * kSlices;

/// Rows of x, at most.
constexpr int kSlicedCols = 8;

/// The rows of W in a tile, and the units of W that a warp keeps in flight: K-major and MN-major.
constexpr int kSlicedRowsK = 16, kSlicedRowsMN = 56;
constexpr int kSlicedDepthK = 3, kSlicedDepthMN = 5;

/// Enqueues the GEMM, which has at most kSlicedCols rows or columns, and returns a cudaError_t. sliced.cu defines the
/// function.
HGEMM_IN_CUDA(launch_sliced(const Problem& p, Stream stream))

}  // namespace hgemm::skinny
