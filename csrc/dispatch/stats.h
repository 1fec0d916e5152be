// Counts calls by kind while a context is active.
//
// A ledger has a counter for each kind of call, and a call is counted once, in the current ledger. It belongs to all
// tallies that are started: when one starts or stops, another ledger becomes current. So starting and stopping cost the
// same whatever was counted before, a tally is the sum of its ledgers, and a ledger is freed with its last tally.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "core/problem.h"
#include "dispatch/c_api.h"
#include "dispatch/decision.h"
#include "dispatch/gemm_api.h"

namespace hgemm {

class Ledger;

/// Where a thread found the counter of a kind of calls. A caller with many such calls keeps it, and passes it again
/// from the same thread; a new one makes count_call() look the counter up.
struct CounterPlace {
  uint64_t ledger = 0;  // the id of the ledger that has the counter
  std::atomic<int64_t>* calls = nullptr;
};

/// A call that is to be counted.
struct CountedCall {
  const Problem& problem;
  int ordinal;  // of the CUDA device
  int cc;       // its compute capability; 0 where nobody asked for it
  const Decision& decision;
  int left;  // a HgemmLeft
  int site;
  bool is_grouped = false;  // a grouped product: the problem has the rows of all groups, and one batch
};

/// Counts a call for every tally that is started, and returns whether one is. Beyond kMostKinds kinds in a ledger, all
/// further kinds share one counter, whose sizes are 0.
bool count_call(const CountedCall& call, CounterPlace* place);

/// Takes back the call that this thread has counted last, at `place`. Nothing happens if its ledger is gone since.
void uncount_call(const CounterPlace& place);

/// The largest number of kinds in a ledger, far more than any model has. It bounds the memory where every call has a
/// new shape.
constexpr size_t kMostKinds = 65536;

/// The calls that are counted between start() and stop(), which may be called any number of times. A tally must be
/// stopped before it is destroyed, and must not be moved before.
class Tally {
 public:
  void start();
  void stop();

  /// Writes the kinds that were counted at least once to `rows`, in the order of their first calls, and returns how
  /// many they are. While the tally is started, calls up to now are included. With `as_shown`, kinds that a report
  /// shows alike are added up (shown_of() in report.h). Where `capacity` might not do, nothing is written, and the
  /// result is a capacity that does.
  size_t rows(bool as_shown, HgemmCallCount* rows, size_t capacity) const;

 private:
  friend struct Counting;
  void merge_ledgers();

  uint64_t id_ = 0;                               // given by the first start
  std::vector<std::shared_ptr<Ledger>> ledgers_;  // all that have calls of this tally
  std::shared_ptr<Ledger> own_;                   // the last one that was made while this was the last tally to start
  size_t most_ledgers_ = 16;                      // with more than these, some are merged
};

}  // namespace hgemm
