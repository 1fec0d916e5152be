// Decisions in words: every candidate with its times or the reasons against it, and the error texts of refusals.
#pragma once

#include <string>
#include <vector>

#include "dispatch/decision.h"

namespace hgemm {

/// One candidate of an explanation.
struct Candidate {
  int variant = kTorch;
  bool eligible = true;      // it can run the problem
  bool forced_only = false;  // it runs only where a call or a context names it
  double predicted_us = 0;   // by the cost model; NaN where it is not eligible
  double measured_us = 0;    // in the tuning table; NaN where the table does not have this shape
  std::string reason;        // why it is not eligible; of a kernel of this library, also why it is forced_only
};

struct Explanation {
  Decision decision;
  std::string reason;
  std::vector<Candidate> candidates;  // every variant in id order, then torch
};

/// The decision of select() for the same arguments, with its reason and all candidates.
Explanation explain(const Problem& problem, const DeviceFacts& facts, int forced);

/// The reason for a decision on a problem, which is not a refusal, on a device of compute capability `cc`.
std::string reason_of(const Problem& problem, int cc, const Decision& decision);

/// The error text of a refused call: the problem, the reasons, and the variants that can run it. `forced` is the
/// variant that was asked for; kAuto where none was, and no kernel has the problem's `numerics`.
std::string refusal(const Problem& problem, const DeviceFacts& facts, int forced);

}  // namespace hgemm
