// Slots of device memory in which the blocks of a launch learn which of them is the last: who has which, counters.cu.
#pragma once

#include "core/problem.h"

namespace hgemm::tile {

// Tiles whose slices of K may meet at counters, batches included; launches that have counters at a time.
constexpr int kMaxCounted = 256, kSlots = 1024;

/// The slot of counters for a launch on `stream`, now; -1 for none. Thread-safe.
int slot_for(Stream stream);

}  // namespace hgemm::tile
