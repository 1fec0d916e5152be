// The decision on int8 products, aten::_int_mm: which kernel computes one, or torch.
//
// The int8 kernels are variants, but not in the registry: its kernels take floating-point matrices, and so do the ops,
// tables, models and tests that go through it. Int8 sums are exact whatever their order is. So the modes of numerics
// make no difference here.
#pragma once

#include "core/problem.h"
#include "dispatch/decision.h"

namespace hgemm {

/// The number of int8 kernels, and one of them. In decisions and reports its id is kFirstInt8Variant + index
/// (registry.h).
int int8_variant_count();
const Variant& int8_variant(int index);

/// The kernel with the least predicted time, or torch where no kernel is predicted to be faster.
Decision select_int8(const Problem& p, const DeviceFacts& facts);

/// Makes select_int8() choose one kernel wherever it can run the product, and torch elsewhere. kAuto withdraws it. For
/// tests and benchmarks.
void set_int8_variant(int index);

}  // namespace hgemm
