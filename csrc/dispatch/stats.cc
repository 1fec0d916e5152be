#include "dispatch/stats.h"

#include <pthread.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <deque>
#include <mutex>
#include <span>
#include <utility>

#include "dispatch/gemm_api.h"
#include "dispatch/registry.h"
#include "dispatch/report.h"

namespace hgemm {
namespace {

// Kinds are compared by their bytes, so there must be no padding.
constexpr size_t kKindBytes = offsetof(HgemmCallKind, us);
constexpr size_t kShownBytes = sizeof(HgemmCallKind);
static_assert(kKindBytes == 4 * 8 + 2 * 4 + 2 * 2 + 12 && kKindBytes % 8 == 0);
static_assert(kShownBytes == kKindBytes + 3 * 4 + 2 + 2 && kShownBytes % 8 == 0);

struct Counter {
  Counter(const HgemmCallKind& kind, uint64_t order) : kind(kind), order(order) {}

  HgemmCallKind kind;
  std::atomic<int64_t> calls{0};
  uint64_t order;  // counters that were made earlier have smaller numbers
};

const HgemmCallKind& kind_at(const Counter& counter) {
  return counter.kind;
}
const HgemmCallKind& kind_at(const HgemmCallCount& row) {
  return row.kind;
}

/// A hash table from kinds to their places in a sequence, which has the kinds. Two kinds are one if their first
/// `key_bytes` bytes are.
class KindIndex {
 public:
  explicit KindIndex(size_t key_bytes) : key_bytes_(key_bytes), slots_(16) {}

  /// The place of `kind` in `all`. Where it is new, the place is all.size(), and the caller appends the kind to `all`.
  template <class All>
  size_t place_of(const HgemmCallKind& kind, const All& all) {
    if (3 * (all.size() + 1) > 2 * slots_.size()) grow(all);
    const uint64_t h = hash(kind);
    Slot& slot = slots_[slot_of(kind, h, all)];
    if (slot.place == 0) slot = {static_cast<uint32_t>(all.size() + 1), tag_of(h)};
    return slot.place - 1;
  }

  template <class All>
  bool has(const HgemmCallKind& kind, const All& all) const {
    return slots_[slot_of(kind, hash(kind), all)].place != 0;
  }

 private:
  struct Slot {
    uint32_t place = 0;  // 1 + a place in the sequence; 0: the slot is free
    uint32_t tag = 0;    // of the kind's hash. Kinds with other tags are not read: few are in a CPU's cache
  };

  static uint32_t tag_of(uint64_t hash) { return static_cast<uint32_t>(hash >> 32); }

  /// The slot that has the kind, or that is to have it. `h` is the kind's hash.
  template <class All>
  size_t slot_of(const HgemmCallKind& kind, uint64_t h, const All& all) const {
    const auto has_kind = [&](const Slot& slot) {
      return slot.tag == tag_of(h) && std::memcmp(&kind_at(all[slot.place - 1]), &kind, key_bytes_) == 0;
    };
    const size_t last = slots_.size() - 1;
    size_t at = h & last;
    while (slots_[at].place != 0 && !has_kind(slots_[at])) at = (at + 1) & last;
    return at;
  }

  uint64_t hash(const HgemmCallKind& kind) const {
    uint64_t h = 0, word;
    for (size_t i = 0; i < key_bytes_; i += sizeof(word)) {
      std::memcpy(&word, reinterpret_cast<const char*>(&kind) + i, sizeof(word));
      h = (h ^ word ^ word >> 32) * 0x9e3779b97f4a7c15u;
    }
    return h ^ h >> 32;
  }

  template <class All>
  void grow(const All& all) {
    slots_.assign(2 * slots_.size(), {});
    for (size_t i = 0; i < all.size(); ++i) {
      const uint64_t h = hash(kind_at(all[i]));
      slots_[slot_of(kind_at(all[i]), h, all)] = {static_cast<uint32_t>(i + 1), tag_of(h)};
    }
  }

  size_t key_bytes_;
  std::vector<Slot> slots_;  // a power of two of them
};

}  // namespace

/// Counters by kind. They never move.
class Ledger {
 public:
  explicit Ledger(uint64_t id) : id(id) {}

  /// The counter of a kind, which is added where it is new, with the number `order`.
  Counter& counter_of(const HgemmCallKind& kind, uint64_t order) {
    if (all_.size() >= kMostKinds && !index_.has(kind, all_)) return others(order);
    return add(kind, order);
  }

  /// Adds the calls of another ledger.
  void add_all(const Ledger& other) {
    for (const Counter& counter : other.all_) {
      Counter& sum = counter_of(counter.kind, counter.order);
      sum.calls.fetch_add(counter.calls.load(std::memory_order_relaxed), std::memory_order_relaxed);
      sum.order = std::min(sum.order, counter.order);
    }
  }

  const std::deque<Counter>& all() const { return all_; }

  const uint64_t id;
  std::vector<uint64_t> audience;  // the ids of the tallies that were started, in the order of their starts

 private:
  Counter& add(const HgemmCallKind& kind, uint64_t order) {
    const size_t place = index_.place_of(kind, all_);
    if (place == all_.size()) all_.emplace_back(kind, order);
    return all_[place];
  }

  /// The counter of all kinds that are too many.
  Counter& others(uint64_t order) {
    if (others_ != nullptr) return *others_;
    HgemmCallKind kind{};
    kind.variant = kUnknownVariant;
    kind.source = static_cast<int8_t>(Source::kFallback);
    kind.left = static_cast<int8_t>(HGEMM_LEFT_KINDS);
    return *(others_ = &add(kind, order));
  }

  std::deque<Counter> all_;
  Counter* others_ = nullptr;
  KindIndex index_{kKindBytes};
};

/// Which ledger is current, for whom.
struct Counting {
  std::mutex mutex;
  std::vector<Tally*> started;     // in the order of their starts
  uint64_t id = 0;                 // of the current ledger; 0 while no tally is started
  std::shared_ptr<Ledger> ledger;  // null until its first call
  uint64_t tallies = 0;            // how many ids of tallies were given, of ledgers, and how many counters were made
  uint64_t ledgers = 0;
  uint64_t counters = 0;

  bool is_for_started(const Ledger& of) const {
    return std::equal(started.begin(), started.end(), of.audience.begin(), of.audience.end(),
                      [](const Tally* tally, uint64_t id) { return tally->id_ == id; });
  }

  void start(Tally* tally) {
    if (std::find(started.begin(), started.end(), tally) != started.end()) return;
    if (tally->id_ == 0) tally->id_ = ++tallies;
    started.push_back(tally);
    change();
  }

  void stop(Tally* tally) {
    const auto found = std::find(started.begin(), started.end(), tally);
    if (found == started.end()) return;
    started.erase(found);
    change();
  }

  /// The ledger of the started tallies becomes current, after a change of these. Contexts mostly nest, so it is the
  /// last tally's own, or a new one.
  void change();

  /// The current ledger, which is made at its first call. To be called only while a tally is started.
  const std::shared_ptr<Ledger>& current_ledger() {
    if (ledger != nullptr) return ledger;
    ledger = std::make_shared<Ledger>(id);
    for (Tally* tally : started) {
      ledger->audience.push_back(tally->id_);
      tally->merge_ledgers();
      tally->ledgers_.push_back(ledger);
    }
    return started.back()->own_ = ledger;
  }
};

namespace {

Counting& counting() {
  static Counting& instance = *new Counting;  // threads may outlive static destructors
  return instance;
}

// A process may fork while another thread counts, and the child must not find the mutex locked. Contexts start tallies
// under a mutex of their own. What is registered first, as this is when the library is loaded, locks last: so the two
// mutexes are locked in the same order as there.
[[maybe_unused]] const int at_fork = pthread_atfork([] { counting().mutex.lock(); }, [] { counting().mutex.unlock(); },
                                                    [] { counting().mutex.unlock(); });

std::atomic<uint64_t> current_id{0};  // Counting::id, for readers without the mutex

/// The ledger that this thread counted its last call in. It keeps the counters alive while the thread adds to them,
/// whoever stops the tallies meanwhile: until the thread's next counted call, or until it starts or stops a tally.
struct Held {
  uint64_t id = 0;
  std::shared_ptr<Ledger> ledger;
};
thread_local Held held;

/// Drops the ledger that this thread holds if it is not the current one. A thread that leaves a context thus leaves
/// none of the context's counters behind.
void let_go() {
  if (held.id != 0 && held.id != current_id.load(std::memory_order_acquire)) held = {};
}

/// Finds the counter in the current ledger, and holds that ledger. Returns false where no tally is started.
bool find_counter(const CountedCall& call, CounterPlace* place) {
  const HgemmCallKind kind = kind_of(call);
  std::shared_ptr<Ledger> before;  // freed after the mutex is unlocked
  Counting& c = counting();
  const std::lock_guard<std::mutex> lock(c.mutex);
  if (c.started.empty()) return false;
  const std::shared_ptr<Ledger>& ledger = c.current_ledger();
  if (held.id != ledger->id) {
    before = std::exchange(held.ledger, ledger);
    held.id = ledger->id;
  }
  *place = {ledger->id, &ledger->counter_of(kind, ++c.counters).calls};
  return true;
}

}  // namespace

void Counting::change() {
  const std::shared_ptr<Ledger>* own = started.empty() ? nullptr : &started.back()->own_;
  if (own != nullptr && *own != nullptr && is_for_started(**own)) {
    ledger = *own;
    id = ledger->id;
  } else {
    ledger = nullptr;
    id = started.empty() ? 0 : ++ledgers;
  }
  current_id.store(id, std::memory_order_release);
}

bool count_call(const CountedCall& call, CounterPlace* place) {
  const uint64_t now = current_id.load(std::memory_order_acquire);
  if (now == 0) return false;
  if ((place->ledger != now || held.id != now) && !find_counter(call, place)) return false;
  place->calls->fetch_add(1, std::memory_order_relaxed);
  return true;
}

void uncount_call(const CounterPlace& place) {
  if (place.ledger != 0 && held.id == place.ledger) place.calls->fetch_sub(1, std::memory_order_relaxed);
}

void Tally::start() {
  {
    const std::lock_guard<std::mutex> lock(counting().mutex);
    counting().start(this);
  }
  let_go();
}

void Tally::stop() {
  {
    const std::lock_guard<std::mutex> lock(counting().mutex);
    counting().stop(this);
  }
  let_go();
}

/// A tally that outlives many others, in which it is nested or which are nested in it, has a ledger in common with
/// each. Adds up those that are this tally's alone, once there are many.
void Tally::merge_ledgers() {
  if (ledgers_.size() < most_ledgers_) return;
  const auto is_shared = [](const std::shared_ptr<Ledger>& ledger) { return ledger.use_count() > 1; };
  const auto alone = std::stable_partition(ledgers_.begin(), ledgers_.end(), is_shared);
  if (ledgers_.end() - alone > 1) {
    std::iter_swap(alone, std::max_element(alone, ledgers_.end(), [](const auto& x, const auto& y) {
                     return x->all().size() < y->all().size();
                   }));
    for (auto other = alone + 1; other != ledgers_.end(); ++other) (*alone)->add_all(**other);
    ledgers_.erase(alone + 1, ledgers_.end());
  }
  most_ledgers_ = std::max<size_t>(16, 2 * ledgers_.size());
}

size_t Tally::rows(bool as_shown, HgemmCallCount* rows, size_t capacity) const {
  const std::lock_guard<std::mutex> lock(counting().mutex);
  std::vector<const Counter*> counters;
  size_t most = 0;
  for (const std::shared_ptr<Ledger>& ledger : ledgers_) most += ledger->all().size();
  if (capacity < most) return most;
  counters.reserve(most);
  for (const std::shared_ptr<Ledger>& ledger : ledgers_) {
    for (const Counter& counter : ledger->all()) counters.push_back(&counter);
  }
  std::sort(counters.begin(), counters.end(), [](const Counter* x, const Counter* y) { return x->order < y->order; });

  size_t count = 0;
  KindIndex index(as_shown ? kShownBytes : kKindBytes);
  for (const Counter* counter : counters) {
    const int64_t calls = counter->calls.load(std::memory_order_relaxed);
    if (calls == 0) continue;
    const HgemmCallKind kind = as_shown ? shown_of(counter->kind) : counter->kind;
    const std::span<const HgemmCallCount> all(rows, count);
    const size_t place = index.place_of(kind, all);
    if (place == count) rows[count++] = {kind, 0};
    rows[place].calls += calls;
  }
  return count;
}

}  // namespace hgemm
