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

/// True if a batch-invariant product of 16-bit operands with these extents and a 16-bit result has sums in slices:
/// where N is small and K is long. One row and many then share slices that give all SMs work. More columns need a
/// longer K: few rows gain by slices, but many rows lose (kernels/sm90_skinny/NOTES.md).
constexpr bool has_slices(int64_t n, int64_t k) {
  return (n <= 1280 && k >= 3072) || (n <= 2048 && k >= 6144);
}

/// True if the promise of the problem is sums in slices.
inline bool sums_in_slices(const Problem& p) {
  return p.in_slices && p.numerics != NumericsMode::kFast;
}
inline bool sums_in_slices(const Problem& p, const DeviceFacts& facts) {
  return sums_in_slices(p) && has_own_kernels(facts.cc);
}

}  // namespace hgemm
