// The decision of a call: select() behind a cache of its thread, with what the context and the environment ask for.
#pragma once

#include "dispatch/decision.h"

namespace hgemm {

/// select(), cached, with `forced` == kAuto replaced by standing_choice(). Counts the call while a context holds. Has a
/// shape that no table holds timed first, where that is asked for (dispatch/tuning.h).
///
/// The cache's key holds every field of the problem except alpha, beta and the addresses, of which it holds the
/// alignment: Variant::eligible and predict_us must not look at more than that.
Decision choose(const Problem& problem, const DeviceFacts& facts, int ordinal, int forced, bool in_backward = false);

/// What a call that names no kernel gets: the choice of the context that holds, else the default variant. A kernel
/// named there is for the half types, or for what it takes: else kAuto.
int standing_choice(const Problem& problem);

/// What kAuto means: kAuto itself, kTorch or a variant's id (the environment's choice).
void set_default_variant(int id);
int default_variant();

/// Called once per new decision, from the thread that made it; null turns it off.
using LogFn = void (*)(const char* line);
void set_log(LogFn log);

/// Runs once, within the first decision that choose() makes; null takes it back.
using FirstUseFn = void (*)();
void set_first_use(FirstUseFn action);

/// Makes every thread's cache forget: what decisions depend on has changed.
void invalidate_decisions();

}  // namespace hgemm
