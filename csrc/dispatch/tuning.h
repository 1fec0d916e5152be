// Shapes that no table holds, timed at their first product. Whoever does so is registered from outside
// (hgemm_set_tuner), as timing needs torch: here is what is to be timed, and how a kernel is launched for it.
#pragma once

#include "core/problem.h"

namespace hgemm {

/// Has the plain product of `problem` timed and added to the table, unless that holds it, no kernel serves it, or it
/// cannot be looked up (entry_of). False: it could not be timed now, and should be at its next call.
bool tune(const Problem& problem, const DeviceFacts& facts, int ordinal);

}  // namespace hgemm
