// The third step of a decision: computes how much faster than torch a kernel has to be before it is chosen.
#pragma once

#include "dispatch/estimates.h"

namespace hgemm {

/// How much faster than torch a kernel has to be predicted to be on a chip without measured times, where torch is known
/// to be slow: in float32 against kernels on tensor cores, and where it computes a group of rows after the other.
constexpr double kUnmeasuredMargin = 1.25;

/// The least margin of predicted times that the epilogue of a problem asks for: 1 where its time counts for nothing, or
/// for torch as much as for us.
double epilogue_margin(const Problem& p);

/// The margin: a kernel is chosen where torch's time divided by its own exceeds this.
double margin_of(const Question& question, const Contenders& contenders, const Estimates& estimates);

/// Whether the estimate of torch's time is good enough for a comparison: the table has the shape or shapes nearby, or
/// the models were fitted to times of this chip.
bool knows_torch(const Question& question, const Estimates& estimates);

}  // namespace hgemm
