#include "dispatch/stats.h"

#include <map>
#include <mutex>
#include <tuple>

#include "dispatch/torch_model.h"

namespace hgemm {
namespace detail {
std::atomic<bool> stats_on{false};
}  // namespace detail

namespace {

auto key_of(const CallCount& c) {
  return std::tie(c.dtype, c.out_dtype, c.a_major, c.b_major, c.act, c.has_bias, c.has_c, c.align, c.batch, c.m, c.n,
                  c.k, c.ordinal, c.variant, c.source);
}

struct ByKey {
  bool operator()(const CallCount& x, const CallCount& y) const { return key_of(x) < key_of(y); }
};

struct Counters {
  std::mutex mutex;
  std::map<CallCount, std::atomic<int64_t>, ByKey> calls;  // never erased from
};

Counters& counters() {
  static Counters instance;
  return instance;
}

}  // namespace

void stats_enable(bool on) {
  detail::stats_on.store(on, std::memory_order_relaxed);
}

std::atomic<int64_t>& stats_counter(const Problem& p, int ordinal, const Decision& decision) {
  const CallCount row{p.dtype,
                      p.out_dtype,
                      p.a_major(),
                      p.b_major(),
                      p.act,
                      p.bias != nullptr,
                      p.c.data != nullptr,
                      least_alignment(p),
                      p.batches(),
                      p.m,
                      p.n,
                      p.k,
                      ordinal,
                      decision.variant,
                      decision.source,
                      0};
  Counters& all = counters();
  const std::lock_guard<std::mutex> lock(all.mutex);
  return all.calls[row];
}

void stats_reset() {
  Counters& all = counters();
  const std::lock_guard<std::mutex> lock(all.mutex);
  for (auto& [row, calls] : all.calls) calls.store(0, std::memory_order_relaxed);
}

std::vector<CallCount> stats_snapshot() {
  Counters& all = counters();
  const std::lock_guard<std::mutex> lock(all.mutex);
  std::vector<CallCount> rows;
  rows.reserve(all.calls.size());
  for (const auto& [row, calls] : all.calls) {
    const int64_t count = calls.load(std::memory_order_relaxed);
    if (count == 0) continue;
    rows.push_back(row);
    rows.back().calls = count;
  }
  return rows;
}

}  // namespace hgemm
