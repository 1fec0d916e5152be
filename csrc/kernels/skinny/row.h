// What the host side (variants.cc) and the CUDA side of the kernel for one row in slices share: its constants and the
// launcher.
#pragma once

#include "core/problem.h"
#include "core/slices.h"

namespace hgemm::skinny {

/// A warp for each slice of K.
constexpr int kRowThreads = 32 * kSlices;

/// The rows of W in a tile, K-major and MN-major, and the units of W that a warp keeps in flight.
constexpr int kRowsOfRowK = 16, kRowsOfRowMN = 56;
constexpr int kDepthOfRowK = 4, kDepthOfRowMN = 6;

/// The longest K: x lies in shared memory.
constexpr int kMostRowK = 96 * 1024 / 2;

/// Enqueues the GEMM, in which M or N is 1, and returns a cudaError_t. row.cu defines the function.
HGEMM_IN_CUDA(launch_row(const Problem& p, Stream stream))

}  // namespace hgemm::skinny
