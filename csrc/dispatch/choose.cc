#include "dispatch/choose.h"

#include <atomic>
#include <mutex>
#include <string>
#include <unordered_set>

#include "core/describe.h"
#include "core/format.h"
#include "dispatch/context.h"
#include "dispatch/decision_cache.h"
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

/// Makes a decision, or finds it in the process's cache, and leaves it in this thread's cache. Where a kernel is named
/// the decision costs less than that cache.
CachedDecision* decide(const DecisionKey& key, const Problem& p, const DeviceFacts& facts, int ordinal, int forced,
                       bool tunes) {
  uint64_t now = generation.load(std::memory_order_acquire);
  Decision decision;
  const Fingerprint fingerprint(key);
  const bool is_shared = forced == kAuto;
  if (!is_shared || !find_shared(fingerprint, now, &decision)) {
    if (first_use.load(std::memory_order_relaxed)) {
      // One thread takes the action. The others do not wait for it: it may need a lock (Python's) that they hold.
      if (const FirstUseFn action = first_use.exchange(nullptr)) action();
    }
    const bool settled = !tunes || tune(p, facts, ordinal);
    // The action and the tuner may have changed the generation, and may have decided on calls of their own. A decision
    // without the timing that was asked for gets number 0, which is always stale.
    now = settled ? generation.load(std::memory_order_acquire) : 0;
    decision = select(p, facts, forced);
    if (LogFn log = the_log.load(std::memory_order_relaxed)) log_decision(log, p, facts, ordinal, forced, decision);
    if (is_shared && settled) share(fingerprint, now, decision);
  }
  return keep_in_thread(key, now, decision);
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
  const DecisionKey key(p, facts.sm_count, ordinal, forced, site, tunes);
  CachedDecision* cached = find_in_thread(key, generation.load(std::memory_order_acquire));
  if (cached == nullptr) cached = decide(key, p, facts, ordinal, forced, tunes);
  if (asked.variant != kNoContext && cached->decision.variant != kRefused) {
    const bool is_counted = count_call({.problem = p,
                                        .ordinal = ordinal,
                                        .cc = facts.cc,
                                        .decision = cached->decision,
                                        .left = HGEMM_LEFT_NOT,
                                        .site = site},
                                       &cached->place);
    if (is_counted && counted != nullptr) *counted = cached->place;
  }
  return cached->decision;
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
