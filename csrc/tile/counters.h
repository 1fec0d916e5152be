// Slots of device memory in which the blocks of a launch learn which of them is the last: who has which, counters.cu.
#pragma once

#include <cstdint>

#include "core/problem.h"

namespace hgemm::tile {

// Tiles whose slices of K may meet at counters, batches included; launches that have counters at a time.
constexpr int kMaxCounted = 256, kSlots = 1024;

/// The slot of counters for a launch on `stream`, now; -1 for none. Thread-safe.
int slot_for(Stream stream);

/// The same for one whose `tiles`, batches included, are cut into `slices` of K; -1 also where nothing is to be
/// counted.
inline int slot_for(Stream stream, int slices, int64_t tiles) {
  return slices > 1 && tiles <= kMaxCounted ? slot_for(stream) : -1;
}

}  // namespace hgemm::tile
