// Slots of counters in device memory, by which the blocks of a launch find out which of them is the last. counters.cu
// explains which launch gets which slot.
#pragma once

#include <cstdint>

#include "core/problem.h"

namespace hgemm::tile {

// kMaxCounted: tiles per launch, batches included, whose slices of K may count. kSlots: launches that can have counters
// at the same time.
constexpr int kMaxCounted = 256, kSlots = 1024;

/// Returns the slot of counters for a launch on `stream` that is made now, or -1 if there is none. Thread-safe.
int slot_for(Stream stream);

/// Returns the slot for a launch of `tiles` tiles, batches included, that splits K into `slices`; -1 if no slot is free
/// or the launch needs no counters or has too many tiles for them.
inline int slot_for(Stream stream, int slices, int64_t tiles) {
  return slices > 1 && tiles <= kMaxCounted ? slot_for(stream) : -1;
}

}  // namespace hgemm::tile
