// Decisions in words: every candidate with its times or the reasons against it, and the texts of refusals.
#pragma once

#include <string>
#include <vector>

#include "dispatch/decision.h"

namespace hgemm {

/// One candidate of an explanation.
struct Candidate {
  int variant = kTorch;
  bool eligible = true;
  double predicted_us = 0;  // by the model; NaN when not eligible
  double measured_us = 0;   // in the table; NaN when it does not hold this shape
  std::string reason;       // why not eligible
};

struct Explanation {
  Decision decision;
  std::string reason;
  std::vector<Candidate> candidates;  // every variant in id order, then torch
};

/// The decision of select() with everything that went into it.
Explanation explain(const Problem& problem, const DeviceFacts& facts, int forced);

/// The error text for kRefused: the problem, the reasons, and the variants that can run it. `forced` is kAuto where no
/// kernel has the problem's `numerics`.
std::string refusal(const Problem& problem, const DeviceFacts& facts, int forced);

}  // namespace hgemm
