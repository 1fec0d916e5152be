// The last step of a decision: chooses a kernel or torch, or refuses the problem.
#pragma once

#include "dispatch/estimates.h"

namespace hgemm {

/// The decision. `margin` is that of margin_of().
Decision verdict_on(const Question& question, const Contenders& contenders, const Estimates& estimates, double margin);

}  // namespace hgemm
