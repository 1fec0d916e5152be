#include "dispatch/models/grouped_table.h"

#include <atomic>
#include <map>
#include <mutex>
#include <shared_mutex>
#include <utility>

namespace hgemm {
namespace {

/// Never destroyed: threads may outlive static objects.
struct Table {
  std::shared_mutex mutex;
  std::map<GroupedKey, GroupedTimes> times;
  std::atomic<bool> has_any{false};  // most processes measure nothing, and then need no lock
};

Table& table() {
  static auto& the_table = *new Table;
  return the_table;
}

}  // namespace

GroupedKey grouped_key(const GroupedProduct& called, const DeviceFacts& facts) {
  const Problem& p = called.product;
  return {facts.cc,
          facts.sm_count,
          facts.l2_bytes,
          static_cast<int64_t>(p.dtype),
          static_cast<int64_t>(called.divided),
          static_cast<int64_t>(p.a_major()),
          static_cast<int64_t>(p.b_major()),
          p.batch[1],
          p.m,
          p.n,
          p.k};
}

GroupedTimes grouped_times(const GroupedKey& key) {
  Table& t = table();
  if (!t.has_any.load(std::memory_order_acquire)) return nullptr;
  const std::shared_lock<std::shared_mutex> lock(t.mutex);
  const auto found = t.times.find(key);
  return found == t.times.end() ? nullptr : found->second;
}

void add_grouped_times(const GroupedKey& key, std::vector<Timing> timings) {
  Table& t = table();
  auto added = std::make_shared<const std::vector<Timing>>(std::move(timings));
  const std::unique_lock<std::shared_mutex> lock(t.mutex);
  t.times[key] = std::move(added);
  t.has_any.store(true, std::memory_order_release);
}

void clear_grouped_times() {
  Table& t = table();
  const std::unique_lock<std::shared_mutex> lock(t.mutex);
  t.times.clear();
  t.has_any.store(false, std::memory_order_release);
}

}  // namespace hgemm
