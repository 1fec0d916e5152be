#include "dispatch/stats.h"

#include <deque>
#include <map>
#include <mutex>
#include <tuple>

namespace hgemm {
namespace {

auto key_of(const CallKind& c) {
  return std::tie(c.dtype, c.out_dtype, c.a_major, c.b_major, c.act, c.has_bias, c.has_c, c.align, c.batch, c.m, c.n,
                  c.k, c.ordinal, c.variant, c.source, c.left, c.site, c.numerics, c.float32);
}

struct ByKey {
  bool operator()(const CallKind* x, const CallKind* y) const { return key_of(*x) < key_of(*y); }
};

struct Counter {
  explicit Counter(const CallKind& kind) : kind(kind) {}
  CallKind kind;
  std::atomic<int64_t> calls{0};
};

struct Counters {
  std::mutex mutex;
  std::deque<Counter> all;  // in the order of first calls; nothing is ever erased
  std::map<const CallKind*, Counter*, ByKey> by_kind;
};

Counters& counters() {
  static Counters& instance = *new Counters;  // threads may outlive static destructors
  return instance;
}

std::vector<int64_t> counts_now() {
  Counters& c = counters();
  const std::lock_guard<std::mutex> lock(c.mutex);
  std::vector<int64_t> counts;
  counts.reserve(c.all.size());
  for (const Counter& counter : c.all) counts.push_back(counter.calls.load(std::memory_order_relaxed));
  return counts;
}

void add_difference(const std::vector<int64_t>& now, const std::vector<int64_t>& start, std::vector<int64_t>* total) {
  total->resize(now.size());
  for (size_t i = 0; i < now.size(); ++i) (*total)[i] += now[i] - (i < start.size() ? start[i] : 0);
}

}  // namespace

std::atomic<int64_t>& call_counter(const Problem& p, int ordinal, const Decision& decision, int left, int site) {
  CallKind kind{.dtype = p.dtype,
                .out_dtype = p.out_dtype,
                .a_major = p.a_major(),
                .b_major = p.b_major(),
                .act = p.act,
                .has_bias = p.bias != nullptr,
                .has_c = p.c.data != nullptr,
                .align = alignments_of(p).least(),
                .batch = p.batches(),
                .m = p.m,
                .n = p.n,
                .k = p.k,
                .ordinal = ordinal,
                .variant = decision.variant,
                .source = decision.source,
                .left = left,
                .site = site,
                .numerics = p.numerics,
                .float32 = p.float32};
  Counters& c = counters();
  const std::lock_guard<std::mutex> lock(c.mutex);
  auto found = c.by_kind.find(&kind);
  if (found == c.by_kind.end() && c.all.size() >= kMostKinds) {
    kind = {};
    kind.variant = kTorch;
    kind.source = Source::kFallback;
    found = c.by_kind.find(&kind);
  }
  if (found != c.by_kind.end()) return found->second->calls;
  Counter& counter = c.all.emplace_back(kind);
  c.by_kind.emplace(&counter.kind, &counter);
  return counter.calls;
}

void Tally::start() {
  start_ = counts_now();
  started_ = true;
}

void Tally::stop() {
  if (!started_) return;
  add_difference(counts_now(), start_, &total_);
  started_ = false;
}

std::vector<Tally::Row> Tally::rows() const {
  std::vector<int64_t> total = total_;
  if (started_) add_difference(counts_now(), start_, &total);
  Counters& c = counters();
  const std::lock_guard<std::mutex> lock(c.mutex);
  std::vector<Row> rows;
  for (size_t i = 0; i < total.size(); ++i) {
    if (total[i] != 0) rows.push_back({c.all[i].kind, total[i]});
  }
  return rows;
}

}  // namespace hgemm
