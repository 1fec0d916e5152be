// The decision of a call: select() behind a cache for each thread and one of the process, with the settings of the
// context and the environment.
#pragma once

#include <cstdint>

#include "dispatch/decision.h"
#include "dispatch/stats.h"

namespace hgemm {

/// Returns the decision of select(), from a cache (decision_cache.h) if it is there. `forced` == kAuto is replaced by
/// standing_choice(). Counts the call while a context is active. Where tuning is on, an untuned shape is timed first
/// (dispatch/tuning.h).
///
/// The caches' key has every field of the problem except alpha and beta, and of each address only its alignment.
/// Variant::eligible and predict_us must therefore not read alpha, beta or more of an address.
///
/// `counted`, if it is not null, receives where the call was counted, and stays as it is where it was not.
Decision choose(const Problem& problem, const DeviceFacts& facts, int ordinal, int forced, bool in_backward = false,
                CounterPlace* counted = nullptr);

/// The variant of a call that names none: the active context's, else the default. A kernel that is named there applies
/// to float16, bfloat16 and the other dtypes that it takes; for any other dtype the result is kAuto.
int standing_choice(const Problem& problem);

/// The variant of calls for which neither the call nor a context names one: kAuto, kTorch or a variant's id. The
/// environment sets it.
void set_default_variant(int id);
int default_variant();

/// Problem::most_workspace of calls: kMostWorkspace, unless a test or a benchmark sets another limit.
void set_most_workspace(int64_t bytes);
int64_t most_workspace();

/// Called with one line of text for each new decision, on the thread that made it. Null turns it off.
using LogFn = void (*)(const char* line);
void set_log(LogFn log);

/// Runs once, within the first decision that choose() makes. Null withdraws it.
using FirstUseFn = void (*)();
void set_first_use(FirstUseFn action);

/// Invalidates the cached decisions of all threads. To be called when something that decisions depend on has changed.
void invalidate_decisions();

}  // namespace hgemm
