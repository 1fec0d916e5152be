#include "dispatch/decision_cache.h"

#include <algorithm>
#include <memory>
#include <mutex>
#include <new>
#include <shared_mutex>
#include <vector>

namespace hgemm {
namespace {

constexpr size_t kSets = 256, kWays = 4;

struct ThreadSet {
  uint64_t hashes[kWays] = {};  // of the keys, so that only the way that is looked for is read
  uint64_t next = 0;            // the way that is replaced next
  CachedDecision ways[kWays];

  CachedDecision* find(const DecisionKey& key, uint64_t hash) {
    for (size_t way = 0; way < kWays; ++way) {
      if (hashes[way] == hash && ways[way].key.words == key.words) return &ways[way];
    }
    return nullptr;
  }
};

thread_local std::unique_ptr<ThreadSet[]> thread_sets;

ThreadSet& set_of(uint64_t hash) {
  if (!thread_sets) thread_sets.reset(new ThreadSet[kSets]);
  return thread_sets[hash % kSets];
}

uint64_t hash_of(const DecisionKey& key) {  // the multiplications do not depend on each other
  uint64_t hash = 0, factor = 0x9e3779b97f4a7c15u;
  for (const uint64_t word : key.words) {
    hash += (word ^ word >> 32) * factor;
    factor += 0x6a09e667f3bcc908u;
  }
  return hash ^ hash >> 29;
}

struct Shared {
  uint64_t fingerprint[2] = {0, 0};
  uint64_t generation = 0;  // 0: the slot is free
  Decision decision;
};
static_assert(sizeof(Shared) == 48);

/// A part of the process's cache: a hash table with linear probing, a power of two of slots.
class Shard {
 public:
  bool find(const Fingerprint& fingerprint, uint64_t generation, Decision* decision) {
    const std::shared_lock<std::shared_mutex> lock(mutex_, std::try_to_lock);
    if (!lock || slots_.empty()) return false;
    const Shared& slot = slots_[place_of(fingerprint)];
    if (slot.generation != generation) return false;
    *decision = slot.decision;
    return true;
  }

  void add(const Shared& shared, const Fingerprint& fingerprint) {
    const std::unique_lock<std::shared_mutex> lock(mutex_, std::try_to_lock);
    if (!lock || !make_room()) return;
    Shared& slot = slots_[place_of(fingerprint)];
    count_ += slot.generation == 0;
    slot = shared;
  }

 private:
  /// Keeps a quarter of the slots free, so that probes are short. Returns false if there is no memory.
  bool make_room() {
    if (4 * (count_ + 1) <= 3 * slots_.size()) return true;
    try {
      std::vector<Shared> before(slots_.empty() ? kFewest : std::min(2 * slots_.size(), kMost));
      const bool is_full = before.size() == slots_.size();
      before.swap(slots_);
      if (is_full) count_ = 0;
      for (const Shared& slot : before) {
        if (!is_full && slot.generation != 0) slots_[place_of(slot.fingerprint)] = slot;
      }
      return true;
    } catch (const std::bad_alloc&) {
      return false;
    }
  }

  size_t place_of(const Fingerprint& fingerprint) const { return place_of(fingerprint.words); }

  /// The slot that has the fingerprint, or else the free one that is to have it.
  size_t place_of(const uint64_t (&fingerprint)[2]) const {
    const size_t last = slots_.size() - 1;
    size_t place = fingerprint[1] & last;
    while (slots_[place].generation != 0 &&
           (slots_[place].fingerprint[0] != fingerprint[0] || slots_[place].fingerprint[1] != fingerprint[1])) {
      place = (place + 1) & last;
    }
    return place;
  }

  static constexpr size_t kFewest = 16, kMost = 32768;

  std::shared_mutex mutex_;
  std::vector<Shared> slots_;
  size_t count_ = 0;  // of slots that are not free
};

constexpr size_t kShards = 64;
static_assert(kMostDecisions == kShards * 32768 * 3 / 4);

Shard& shard_of(const Fingerprint& fingerprint) {
  static Shard* const shards = new Shard[kShards];  // threads may outlive static objects
  return shards[fingerprint.words[0] % kShards];
}

/// Mixes a word into a hash: the two halves of a product of 128 bits.
uint64_t mixed(uint64_t hash, uint64_t word) {
  const unsigned __int128 product = static_cast<unsigned __int128>(hash ^ word) * 0x9e3779b97f4a7c15u;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

}  // namespace

DecisionKey::DecisionKey(const Problem& p, int sm_count, int ordinal, int forced, int site, bool tunes) {
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
               u(p.b_is_a_transposed) << 45 | u(p.rows_are_batch) << 46 | u(p.conjugates_a) << 47 |
               u(p.conjugates_b) << 48 | u(p.in_slices) << 49 | low(p.a.data) << 16 | low(p.b.data) << 20 |
               low(p.c.data) << 24 | low(p.d.data) << 28 | low(p.bias) << 32 | low(p.pre_activation) << 36,
           u(static_cast<uint16_t>(sm_count)) << 48 | u(static_cast<uint16_t>(ordinal)) << 32 |
               static_cast<uint32_t>(forced),
           u(static_cast<uint32_t>(site)) | u(tunes) << 32};
}

CachedDecision* find_in_thread(const DecisionKey& key, uint64_t generation) {
  const uint64_t hash = hash_of(key);
  CachedDecision* const cached = set_of(hash).find(key, hash);
  return cached != nullptr && cached->generation == generation ? cached : nullptr;
}

CachedDecision* keep_in_thread(const DecisionKey& key, uint64_t generation, const Decision& decision) {
  const uint64_t hash = hash_of(key);
  ThreadSet& set = set_of(hash);
  CachedDecision* place = set.find(key, hash);
  if (place == nullptr) {
    const size_t way = set.next++ % kWays;
    set.hashes[way] = hash;
    place = &set.ways[way];
  }
  *place = {.key = key, .generation = generation, .decision = decision, .place = {}};
  return place;
}

Fingerprint::Fingerprint(const DecisionKey& key) : words{0x243f6a8885a308d3u, 0x13198a2e03707344u} {
  for (const uint64_t word : key.words) {
    words[0] = mixed(words[0], word);
    words[1] = mixed(words[1], ~word);
  }
}

bool find_shared(const Fingerprint& fingerprint, uint64_t generation, Decision* decision) {
  return shard_of(fingerprint).find(fingerprint, generation, decision);
}

void share(const Fingerprint& fingerprint, uint64_t generation, const Decision& decision) {
  const Shared shared{
      .fingerprint = {fingerprint.words[0], fingerprint.words[1]}, .generation = generation, .decision = decision};
  shard_of(fingerprint).add(shared, fingerprint);
}

}  // namespace hgemm
