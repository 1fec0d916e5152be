// The second step of a decision: estimates how long torch and every contender would take. Measured times of the shape
// come first. Without them the analytic cost models predict. The learned model of the chip corrects the predictions;
// where the chip has none, measured shapes nearby do.
#pragma once

#include "dispatch/contenders.h"
#include "dispatch/models/table.h"

namespace hgemm {

/// Microseconds of one candidate.
struct Times {
  double predicted;  // by the cost models alone
  double measured;   // in the tuning table; NaN where the table does not have it
  double used;       // the time that the decision compares; NaN: the candidate is not considered
};

/// How much faster than torch a kernel has to be where only the analytic models predict. These are off by 5 to 7 % on
/// average, and a kernel that is slower than torch is worse than a missed chance.
constexpr double kAnalyticMargin = 1.05;

/// The estimates for all candidates. Members without an initialiser stay uninitialised: a decision has this struct on
/// its stack, and would pay for the initialisation each time.
struct Estimates {
  Knowledge known;  // what the tuning table has for the shape
  Times torch;
  Times ours[kMaxVariants];               // in the order of the contenders
  double model_margin = kAnalyticMargin;  // how much faster than torch the model in use has to predict a kernel to be
  double table_values[kMaxVariants + 1];  // the memory that `known` points to

  bool is_measured() const { return known.kind == Knowledge::Kind::kExact; }
  bool knows_anything() const { return known.kind != Knowledge::Kind::kNothing; }
};

/// Fills `out`, which must be newly constructed. `for_explanation`: measured shapes get predictions, too.
void estimate(const Question& question, const Contenders& contenders, bool for_explanation, Estimates* out);

}  // namespace hgemm
