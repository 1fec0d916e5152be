// Measured times of grouped products. An entry is found by the sizes that the host knows: the groups' ends that it was
// measured with are not a part of its key.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "core/grouped.h"
#include "dispatch/models/table.h"

namespace hgemm {

/// The number of 64-bit words in a key of the table.
constexpr size_t kGroupedKeyWords = 11;
using GroupedKey = std::array<int64_t, kGroupedKeyWords>;

/// The key of a product, as it is called, on a GPU.
GroupedKey grouped_key(const GroupedProduct& called, const DeviceFacts& facts);

/// Times of a product, of which Timing::variant is the index of a grouped kernel or kTorch.
using GroupedTimes = std::shared_ptr<const std::vector<Timing>>;

/// The times of a product; null where it was not measured.
GroupedTimes grouped_times(const GroupedKey& key);

/// Adds the times of a product, in the place of those that the table has of it.
void add_grouped_times(const GroupedKey& key, std::vector<Timing> timings);

/// Empties the table.
void clear_grouped_times();

}  // namespace hgemm
