// Times an untuned shape at its first call. Timing needs torch, so a function from outside does it, the tuner, which
// hgemm_set_tuner registers. This file tells the tuner what to time, and launches kernels for it.
#pragma once

#include "core/problem.h"

namespace hgemm {

/// Has the tuner time the matmul of `problem` without its epilogue, and add the times to the table. Does nothing where
/// the table already has the shape, no kernel can run it, or no entry would describe it (entry_of). Returns false where
/// the shape could not be timed now, and should be at its next call.
bool tune(const Problem& problem, const DeviceFacts& facts, int ordinal);

}  // namespace hgemm
