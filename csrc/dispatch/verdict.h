// The last step of a decision: ours, torch's, or refused.
#pragma once

#include "dispatch/estimates.h"

namespace hgemm {

struct Verdict {
  Decision decision;
  double margin = 1.0;           // how much faster than torch a kernel had to be
  bool unmeasured_chip = false;  // Torch was preferred because nobody measured this chip.
};

/// Requires `margin` of margin_of().
Verdict verdict_on(const Question& question, const Contenders& contenders, const Estimates& estimates, double margin);

}  // namespace hgemm
