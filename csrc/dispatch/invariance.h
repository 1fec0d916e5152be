// numerics="batch_invariant": the bits of a row that depend on that row of A, on B, on N, K, dtype, layout and epilogue
// alone, whoever shares the batch. It is a choice among kernels of one class (Sums): of halves those that sum in K's
// order, the only class of theirs with a kernel for every M; of float32 those over planes, where float32="split" allows
// them. Beside it that mode, which adds kernels to choose among.
#pragma once

#include <string>

#include "core/chip.h"
#include "core/problem.h"

namespace hgemm {

/// The sums that all rows of a product have. In float32 a chip with kernels of its own has those of wgmma.
inline Sums promised_sums(const Problem& p, const DeviceFacts& facts) {
  if (p.dtype != DType::kF32) return Sums::kInOrder;
  return has_own_kernels(facts.cc) ? Sums::kPlanes : Sums::kPlanesMma;
}

/// Whether a kernel may serve the problem as far as its `numerics` go. Of activations beyond relu a chip with kernels
/// of its own takes the fast ones, another one those that every kernel has: on either, all rows have the same. In
/// float32 there are no fast ones.
inline bool keeps_promise(const Variant& v, const Problem& p, const DeviceFacts& facts) {
  if (p.numerics == NumericsMode::kFast) return true;
  const bool activates = p.act == Activation::kNone || p.act == Activation::kRelu || p.dtype == DType::kF32 ||
                         v.fast_activations == has_own_kernels(facts.cc);
  return v.sums == promised_sums(p, facts) && activates;
}

/// Whether the dispatcher may choose a kernel that nobody named, as far as the problem's `float32` goes.
inline bool may_be_chosen(const Variant& v, const Problem& p) {
  if (p.float32 == Float32Mode::kTf32) return false;
  return v.arithmetic != Arithmetic::kSplitF32 || p.float32 == Float32Mode::kSplit;
}

/// Whether torch, whose bits may vary with the batch, must not serve the problem.
inline bool must_be_ours(const Problem& p) {
  return p.numerics != NumericsMode::kFast && !p.empty() &&
         (p.is_half() || p.float32 == Float32Mode::kSplit || p.numerics == NumericsMode::kBatchInvariantOrRaise);
}

/// Sets Problem::numerics and Problem::float32. Where the first is not kFast, a bias beside an alpha then becomes a C:
/// kernels may add one to alpha * sum in two roundings or in one.
void ask_for(NumericsMode numerics, Float32Mode float32, Problem* problem);

/// The same for a call, whose modes may be kAuto: then the context and the defaults (below) decide, and a strict
/// float32 product is torch's where torch may use TF32.
void ask_for_modes(int numerics, int float32, bool allows_tf32, Problem* problem);

/// The error text where must_be_ours() cannot be held.
std::string unheld(const Problem& problem, const std::string& why);

/// What a call that asks for nothing gets: what the context asks for that holds, else the default.
NumericsMode standing_numerics();
void set_default_numerics(NumericsMode numerics);
NumericsMode default_numerics();
Float32Mode standing_float32();
void set_default_float32(Float32Mode float32);
Float32Mode default_float32();

}  // namespace hgemm
