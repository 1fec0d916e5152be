// The second step of a decision: how long torch and every contender would take. Measured times of the shape come first.
// Without them the analytic models predict, corrected by what was learned on this chip or, where nothing was learned,
// by measured shapes nearby.
#pragma once

#include "dispatch/contenders.h"
#include "dispatch/models/table.h"

namespace hgemm {

/// Microseconds of one candidate.
struct Times {
  double predicted;  // by the models alone
  double measured;   // NaN where the table does not have it
  double used;       // what the decision compares; NaN: the candidate is not to be considered
};

/// How much faster than torch a kernel has to be where only the analytic models speak: they are off by 5 to 7 % on
/// average, and a wrong choice of ours is worse than a missed one.
constexpr double kAnalyticMargin = 1.05;

/// Left uninitialised where no constructor says otherwise, as decisions are made on the stack.
struct Estimates {
  Knowledge known;  // what the tuning table says of the shape
  Times torch;
  Times ours[kMaxVariants];               // in the order of the contenders
  double model_margin = kAnalyticMargin;  // How much faster than torch a kernel has to be by the model that was used.
  double table_values[kMaxVariants + 1];  // memory behind `known`

  bool is_measured() const { return known.kind == Knowledge::Kind::kExact; }
  bool knows_anything() const { return known.kind != Knowledge::Kind::kNothing; }
};

/// Fills `out`, which must be fresh. `for_explanation`: predictions are wanted of measured shapes too.
void estimate(const Question& question, const Contenders& contenders, bool for_explanation, Estimates* out);

}  // namespace hgemm
