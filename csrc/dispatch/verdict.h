// The last step of a decision: chooses a kernel or torch, or refuses the problem.
#pragma once

#include "dispatch/estimates.h"

namespace hgemm {

struct Verdict {
  Decision decision;
  double margin = 1.0;           // how much faster than torch a kernel had to be
  bool unmeasured_chip = false;  // torch was chosen because there are no measured times of this chip
};

/// The verdict. `margin` is that of margin_of().
Verdict verdict_on(const Question& question, const Contenders& contenders, const Estimates& estimates, double margin);

}  // namespace hgemm
