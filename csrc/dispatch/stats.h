// Counts calls by kind while a context is active.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "core/problem.h"
#include "dispatch/decision.h"
#include "dispatch/gemm_api.h"

namespace hgemm {

/// The kind of a call: two calls with equal fields share a counter.
struct CallKind {
  DType dtype, out_dtype;
  Major a_major, b_major;
  Activation act;
  bool has_bias, has_c;
  int align;
  int64_t batch, m, n, k;
  int ordinal;
  int variant;
  Source source;
  int left;  // a HgemmLeft
  int site;
  NumericsMode numerics;
  Float32Mode float32;
};

/// The counter of calls of this kind. It lives as long as the process, so that a caller with many such calls may keep
/// the reference. Beyond kMostKinds kinds all further kinds share one counter, whose sizes are 0.
std::atomic<int64_t>& call_counter(const Problem& problem, int ordinal, const Decision& decision, int left, int site);

/// The largest number of kinds, far more than any model has. It bounds the memory where every call has a new shape.
constexpr size_t kMostKinds = 65536;

/// The calls that are counted between start() and stop(), which may be called any number of times. Not thread-safe by
/// itself.
class Tally {
 public:
  void start();
  void stop();

  struct Row {
    CallKind kind;
    int64_t calls;
  };
  /// The kinds that were counted at least once, in the order of their first calls. While the tally is started, calls up
  /// to now are included.
  std::vector<Row> rows() const;

 private:
  bool started_ = false;
  std::vector<int64_t> start_, total_;  // by kind, in the order of first calls; kinds past the end have 0
};

}  // namespace hgemm
