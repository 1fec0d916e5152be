// The decisions that were made before: a small cache for each thread, which needs no lock, and behind it one of the
// process.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "dispatch/decision.h"
#include "dispatch/stats.h"

namespace hgemm {

/// Everything that a decision may depend on, except what a generation stands for (invalidate_decisions() in choose.h):
/// the problem without alpha and beta, and with only the last four bits of each address; the choices of the call. Of a
/// device's facts, only the number of SMs changes, from one stream to another.
struct DecisionKey {
  DecisionKey() : words{} {}
  DecisionKey(const Problem& problem, int sm_count, int ordinal, int forced, int site, bool tunes);

  std::array<uint64_t, 21> words;
};

/// A decision in a thread's cache.
struct CachedDecision {
  DecisionKey key;
  uint64_t generation = 0;  // 0: the slot is free, or the decision is always stale
  Decision decision;
  CounterPlace place;  // where calls with this key are counted
};

/// Finds a decision of `generation` in this thread's cache; null where it has none.
CachedDecision* find_in_thread(const DecisionKey& key, uint64_t generation);

/// Adds a decision to this thread's cache, and returns its place there. A thread's cache has 1024 places, in sets of
/// four; a set replaces its decisions in turn.
CachedDecision* keep_in_thread(const DecisionKey& key, uint64_t generation, const Decision& decision);

/// A hash of a DecisionKey of so many bits that the process's cache does without the key: of 10^6 keys, two have the
/// same one with a probability of 10^-27.
struct Fingerprint {
  explicit Fingerprint(const DecisionKey& key);

  uint64_t words[2];
};

/// Finds a decision of `generation` in the process's cache.
bool find_shared(const Fingerprint& fingerprint, uint64_t generation, Decision* decision);

/// Adds a decision to the process's cache. The cache has at most kMostDecisions decisions of 48 bytes each, in tables
/// of at most twice the size. It is divided into shards, and a shard that is full is cleared. No caller waits for
/// another one: if a shard is locked, nothing is found in it or added to it. So a process may fork at any time.
void share(const Fingerprint& fingerprint, uint64_t generation, const Decision& decision);

constexpr size_t kMostDecisions = 1572864;

}  // namespace hgemm
