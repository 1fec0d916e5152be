// Slices of K. They keep the error of long batch-invariant sums small.
//
// A tensor core truncates as it accumulates, so the error of a sum in K's order grows with K. Where the result is
// float32, such a sum is therefore computed in slices of K, by one launch of the kernel for each: the first launch
// writes alpha * A @ B (+ beta * C or bias) to D, and every other one adds its product to D, which rounds to nearest.
// The last one applies the activation. The slices depend on K alone, so the bits depend on nothing else either. Results
// of 16 bits need no slices: their own rounding is larger (benchmarks/in_order_errors.py).
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/problem.h"

namespace hgemm {

/// The slices of a problem's K. All have `length` k, but the last one, which has what is left.
struct KSlices {
  int64_t count, length;
};
KSlices k_slices_of(const Problem& p);

/// The problem of slice `i`, counted from 0. The caller may not have allocated D yet.
Problem k_slice(const Problem& p, const KSlices& slices, int64_t i);

/// Variant's functions, for a problem that may have slices of K. The variant can run it if it can run every slice. Its
/// workspace and its predicted time are those of all slices.
bool can_run_slices(const Variant& v, const Problem& p, const DeviceFacts& facts, Reason* why);
size_t slices_workspace(const Variant& v, const Problem& p, const DeviceFacts& facts);
double predict_slices_us(const Variant& v, const Problem& p, const DeviceFacts& facts);
Status launch_slices(const Variant& v, const Problem& p, const DeviceFacts& facts, void* workspace, Stream stream);

}  // namespace hgemm
