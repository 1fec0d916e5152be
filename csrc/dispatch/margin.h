// The third step of a decision: how much faster than torch a kernel has to be before it is chosen.
#pragma once

#include "dispatch/estimates.h"

namespace hgemm {

/// Torch's time over the kernel's time must exceed this.
double margin_of(const Question& question, const Contenders& contenders, const Estimates& estimates);

/// Whether torch's time is known well enough to be compared with: the table has the shape or its neighbours, or this
/// project measured the chip.
bool knows_torch(const Question& question, const Estimates& estimates);

}  // namespace hgemm
