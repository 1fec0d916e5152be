// Decides which kernel runs a problem: a pure function of the problem, the device's facts and the tuning table.
//
//   find_contenders  finds the kernels that can run it                          contenders.h
//   estimate         estimates how long they and torch would take               estimates.h
//   margin_of        computes how much faster than torch a kernel has to be     margin.h
//   verdict_on       chooses a kernel or torch, or refuses the problem          verdict.h
//
// explain.h has the same decision in words.
#pragma once

#include "dispatch/decision.h"

namespace hgemm {

/// The decision. `forced`: kAuto, kTorch or a variant's id.
Decision select(const Problem& problem, const DeviceFacts& facts, int forced);

}  // namespace hgemm
