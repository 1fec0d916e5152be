// The modes of a call, numerics and float32, and which kernels they allow.
//
// With numerics="batch_invariant" the bits of a result's row depend only on that row of A, on B, and on N, K, the
// dtype, the layout and the epilogue. They do not depend on what else is in the batch. The dispatcher achieves this by
// choosing only among kernels with one order of summation (Sums). For float16 and bfloat16 these are the kernels that
// sum in K's order: of these there is one for every M. Where N is small and K is long, they are the kernels that sum in
// four slices of K (core/slices.h). Where such a sum is longer than kCarriedK and its result is float32, they are the
// kernels with carried sums. Which of these it is depends on N, K and the dtypes alone. For float32 they are the
// kernels over bfloat16 planes, where float32="split" allows those.
//
// float32="split" adds these kernels to the ones that the dispatcher may choose. It adds them for complex64 as well,
// but only where numerics is "fast": torch runs all other complex matmuls.
#pragma once

#include <string>

#include "core/chip.h"
#include "core/problem.h"
#include "core/slices.h"

namespace hgemm {

/// The order of summation of every batch-invariant kernel for this problem. In float32 it is that of wgmma on a chip
/// with kernels of its own, and that of mma.sync elsewhere. Long float32 sums of 16-bit products are carried.
inline Sums promised_sums(const Problem& p, const DeviceFacts& facts) {
  if (p.dtype != DType::kF32) {
    if (sums_in_slices(p, facts)) return Sums::kFourSlices;
    return p.out_dtype == DType::kF32 && p.k > kCarriedK ? Sums::kCarried : Sums::kInOrder;
  }
  return has_own_kernels(facts.cc) ? Sums::kPlanes : Sums::kPlanesMma;
}

/// Whether a kernel may run the problem under the problem's `numerics`. Batch-invariant kernels must also agree on the
/// formula of activations other than relu: on a chip with kernels of its own they use the fast formulas, elsewhere
/// those that every kernel has. In float32 there are no fast formulas.
inline bool keeps_promise(const Variant& v, const Problem& p, const DeviceFacts& facts) {
  if (p.numerics == NumericsMode::kFast) return true;
  const bool activates = p.act == Activation::kNone || p.act == Activation::kRelu || p.dtype == DType::kF32 ||
                         v.fast_activations == has_own_kernels(facts.cc);
  const Sums promised = promised_sums(p, facts);
  const bool sums_so = v.sums == promised || (promised == Sums::kFourSlices && v.also_four_slices);
  return sums_so && activates;
}

/// Whether the dispatcher may choose a kernel that the call does not name, under the problem's modes.
inline bool may_be_chosen(const Variant& v, const Problem& p) {
  if (p.float32 == Float32Mode::kTf32) return false;
  if (v.only_invariant && p.numerics == NumericsMode::kFast) return false;
  return !takes_planes(v.arithmetic) || p.float32 == Float32Mode::kSplit;
}

/// Whether torch must not compute the problem, because its bits may vary with the batch.
inline bool must_be_ours(const Problem& p) {
  return p.numerics != NumericsMode::kFast && !p.empty() &&
         (p.is_half() || p.float32 == Float32Mode::kSplit || p.numerics == NumericsMode::kBatchInvariantOrRaise);
}

/// Sets Problem::numerics and Problem::float32. Where numerics is not kFast and alpha is not 1, a bias then becomes a
/// C: some kernels add a bias to alpha * sum in two roundings, others in one.
void ask_for(NumericsMode numerics, Float32Mode float32, Problem* problem);

/// Sets the same fields for a call, whose modes may be kAuto. The context and the defaults (below) then decide. If they
/// give float32 the mode kStrict, and torch may use TF32, the mode becomes kTf32: torch computes the call, unless a
/// kernel is named.
void ask_for_modes(int numerics, int float32, bool allows_tf32, Problem* problem);

/// The error text for a problem that must_be_ours(), where no kernel can run it: `why` gives the reason.
std::string unheld(const Problem& problem, const std::string& why);

/// The modes of a call that names none: the active context's, else the defaults.
NumericsMode standing_numerics();
void set_default_numerics(NumericsMode numerics);
NumericsMode default_numerics();
Float32Mode standing_float32();
void set_default_float32(Float32Mode float32);
Float32Mode default_float32();

}  // namespace hgemm
