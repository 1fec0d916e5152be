// Which kernel runs a problem: a pure function of the problem, the device's facts and the tuning table.
//
//   find_contenders  which kernels can run it             contenders.h
//   estimate         how long they and torch would take   estimates.h
//   margin_of        how much faster than torch to be     margin.h
//   verdict_on       ours, torch's, or refused            verdict.h
//
// explain.h tells the same in words.
#pragma once

#include "dispatch/decision.h"

namespace hgemm {

/// The decision. `forced`: kAuto, kTorch or a variant's id.
Decision select(const Problem& problem, const DeviceFacts& facts, int forced);

}  // namespace hgemm
