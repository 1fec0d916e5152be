#include "dispatch/choose.h"

#include <array>
#include <atomic>
#include <mutex>
#include <string>
#include <unordered_map>
#include <unordered_set>

#include "core/describe.h"
#include "core/format.h"
#include "dispatch/context.h"
#include "dispatch/registry.h"
#include "dispatch/select.h"
#include "dispatch/stats.h"
#include "dispatch/tuning.h"

namespace hgemm {
namespace {

std::atomic<int> the_default{kAuto};
std::atomic<int64_t> the_most_workspace{kMostWorkspace};
std::atomic<LogFn> the_log{nullptr};
std::atomic<FirstUseFn> first_use{nullptr};
// A cached decision with an older number is stale.
std::atomic<uint64_t> generation{1};

/// Everything that a decision may depend on: the problem without alpha and beta, and with only the last four bits of
/// each address. Of a device's facts, only the number of SMs changes, from one stream to another.
struct Key {
  using Words = std::array<uint64_t, 21>;
  Words words;

  Key(const Problem& p, int sm_count, int ordinal, int forced, int site, bool tunes) {
    const bool has_c = p.c.data != nullptr;
    const auto u = [](auto x) { return static_cast<uint64_t>(x); };
    const auto low = [](const void* address) { return reinterpret_cast<uintptr_t>(address) & 15; };
    words = {u(p.m),
             u(p.n),
             u(p.k),
             u(p.batch[0]),
             u(p.batch[1]),
             u(p.lda()),
             u(p.a.batch_stride[0]),
             u(p.a.batch_stride[1]),
             u(p.ldb()),
             u(p.b.batch_stride[0]),
             u(p.b.batch_stride[1]),
             u(p.d.row_stride),
             has_c ? u(p.c.row_stride) : 0,
             has_c ? u(p.c.col_stride) : 0,
             u(p.d.batch_stride[0]),
             u(p.d.batch_stride[1]),
             has_c ? u(p.c.batch_stride[0]) : 0,
             has_c ? u(p.c.batch_stride[1]) : 0,
             u(p.dtype) | u(p.out_dtype) << 3 | u(p.c_dtype) << 6 | u(p.act) << 9 | u(p.a_major()) << 12 |
                 u(p.b_major()) << 13 | u(has_c) << 14 | u(p.bias != nullptr) << 15 |
                 u(p.pre_activation != nullptr) << 40 | u(p.numerics) << 41 | u(p.float32) << 43 |
                 u(p.b_is_a_transposed) << 45 | low(p.a.data) << 16 | low(p.b.data) << 20 | low(p.c.data) << 24 |
                 low(p.d.data) << 28 | low(p.bias) << 32 | low(p.pre_activation) << 36,
             u(static_cast<uint16_t>(sm_count)) << 48 | u(static_cast<uint16_t>(ordinal)) << 32 |
                 static_cast<uint32_t>(forced),
             u(static_cast<uint32_t>(site)) | u(tunes) << 32};
  }

  bool operator==(const Key& other) const { return words == other.words; }
};

struct Hash {
  size_t operator()(const Key& key) const {  // the multiplications do not depend on each other
    uint64_t h = 0, factor = 0x9e3779b97f4a7c15u;
    for (uint64_t w : key.words) {
      h += (w ^ w >> 32) * factor;
      factor += 0x6a09e667f3bcc908u;
    }
    return static_cast<size_t>(h ^ h >> 29);
  }
};

struct Cached {
  uint64_t generation = 0;
  Decision decision;
  CounterPlace place;
};

// A model has a few dozen distinct shapes, but a growing sequence has a new one at each step. The cache is cleared when
// it is full.
constexpr size_t kMostCached = 1024;
thread_local std::unordered_map<Key, Cached, Hash> cache;

void log_decision(LogFn log, const Problem& p, const DeviceFacts& facts, int ordinal, int forced, const Decision& d) {
  static std::mutex mutex;
  static std::unordered_set<std::string> seen;
  std::string line = describe(p) + format(" on cuda:%d (sm_%d): ", ordinal, facts.cc);
  if (d.variant == kRefused) {
    line += format("%s refused", variant_name(forced));
  } else {
    line += format("%s (%s", variant_name(d.variant), source_name(d.source));
    if (d.source == Source::kTable || d.source == Source::kModel) {
      line += format(", %.1f us, torch %.1f us", d.us, d.torch_us);
    }
    line += ")";
  }
  {
    const std::lock_guard<std::mutex> lock(mutex);
    if (seen.size() >= kMostKinds || !seen.insert(line).second) return;
  }
  log(line.c_str());
}

/// The variant that these settings name for a problem.
int choice_of(const HgemmSettings& asked, const Problem& p) {
  const int id = asked.variant == kNoContext || asked.variant == kAuto ? default_variant() : asked.variant;
  return id < 0 || p.is_half() || (variant(id).dtypes >> static_cast<int>(p.dtype) & 1u) != 0 ? id : kAuto;
}

}  // namespace

int standing_choice(const Problem& p) {
  return choice_of(context_settings(), p);
}

Decision choose(const Problem& p, const DeviceFacts& facts, int ordinal, int forced, bool in_backward,
                CounterPlace* counted) {
  const HgemmSettings asked = context_settings();
  if (forced == kAuto) forced = choice_of(asked, p);
  const int site = current_site(in_backward);
  const bool tunes = forced == kAuto && p.numerics == NumericsMode::kFast && asked.tunes != 0;
  const Key key(p, facts.sm_count, ordinal, forced, site, tunes);
  auto found = cache.find(key);
  if (found == cache.end() || found->second.generation != generation.load(std::memory_order_acquire)) {
    if (first_use.load(std::memory_order_relaxed)) {
      // One thread takes the action. The others do not wait for it: it may need a lock (Python's) that they hold.
      if (const FirstUseFn action = first_use.exchange(nullptr)) action();
    }
    const bool settled = !tunes || tune(p, facts, ordinal);
    // The action and the tuner may have changed the generation, and may have decided on calls of their own. A decision
    // without the timing that was asked for gets number 0, which is always stale.
    const uint64_t now = settled ? generation.load(std::memory_order_acquire) : 0;
    const Decision decision = select(p, facts, forced);
    if (LogFn log = the_log.load(std::memory_order_relaxed)) log_decision(log, p, facts, ordinal, forced, decision);
    if (cache.size() >= kMostCached) cache.clear();
    found = cache.insert_or_assign(key, Cached{now, decision, {}}).first;
  }
  Cached& cached = found->second;
  if (asked.variant != kNoContext && cached.decision.variant != kRefused) {
    const bool is_counted = count_call({.problem = p,
                                        .ordinal = ordinal,
                                        .cc = facts.cc,
                                        .decision = cached.decision,
                                        .left = HGEMM_LEFT_NOT,
                                        .site = site},
                                       &cached.place);
    if (is_counted && counted != nullptr) *counted = cached.place;
  }
  return cached.decision;
}

void set_default_variant(int id) {
  the_default.store(id, std::memory_order_relaxed);
}

int default_variant() {
  return the_default.load(std::memory_order_relaxed);
}

void set_most_workspace(int64_t bytes) {
  the_most_workspace.store(bytes, std::memory_order_relaxed);
  invalidate_decisions();
}

int64_t most_workspace() {
  return the_most_workspace.load(std::memory_order_relaxed);
}

void set_log(LogFn log) {
  the_log.store(log, std::memory_order_relaxed);
}

void set_first_use(FirstUseFn action) {
  first_use.store(action);
}

void invalidate_decisions() {
  generation.fetch_add(1, std::memory_order_acq_rel);
}

}  // namespace hgemm
