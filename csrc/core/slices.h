// Batch-invariant sums in slices of K (Sums::kFourSlices): which problems have them, and where the slices begin.
//
// One accumulator over all of a long K takes long, however few results there are: a block adds up 16 k in about 33
// cycles. Where N is small, only slices of K give all SMs work. Whether there are slices depends on N and K alone, so
// few rows and many have the same ones.
#pragma once

#include "core/chip.h"
#include "core/problem.h"

namespace hgemm {

/// The slices of K of a batch-invariant sum in slices. They begin at multiples of kSliceK.
constexpr int kSlices = 4;
constexpr int kSliceK = 128;

/// True if a batch-invariant product with these extents has sums in slices. A product with fewer columns and the same K
/// then has them, too: a kernel may run in slabs of columns (tile/slabs.h), and asks for each slab.
constexpr bool has_slices(int64_t n, int64_t k) {
  return (n <= 1280 && k >= 3072) || (n <= 2048 && k >= 8192);
}

/// True if the problem's promise is sums in slices, on a chip with kernels of its own. float32 results have carried
/// sums. A vector B stands for a row, so the columns are then the rows of A.
inline bool sums_in_slices(const Problem& p) {
  return p.numerics != NumericsMode::kFast && p.is_half() && p.out_dtype != DType::kF32 &&
         has_slices(p.b_is_vector ? p.m : p.n, p.k);
}
inline bool sums_in_slices(const Problem& p, const DeviceFacts& facts) {
  return has_own_kernels(facts.cc) && sums_in_slices(p);
}

}  // namespace hgemm
