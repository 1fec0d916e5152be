// Products counted per distinct decision, while a context holds.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "core/problem.h"
#include "dispatch/decision.h"
#include "dispatch/gemm_api.h"

namespace hgemm {

/// What tells counted products apart.
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
  int left;  // HgemmLeft
  int site;
  NumericsMode numerics;
  Float32Mode float32;
};

/// The counter of such products. It lives as long as the process: who counts many of them looks for it once. Beyond
/// kMostKinds kinds, the rest share one, whose sizes are 0.
std::atomic<int64_t>& call_counter(const Problem& problem, int ordinal, const Decision& decision, int left, int site);

/// Far more than models have; shapes that differ at every call must not fill the memory.
constexpr size_t kMostKinds = 65536;

/// What is counted between start() and stop(), any number of times; not thread-safe by itself.
class Tally {
 public:
  void start();
  void stop();

  struct Row {
    CallKind kind;
    int64_t calls;
  };
  /// What was counted at least once, in the order of first calls, up to now where it is started.
  std::vector<Row> rows() const;

 private:
  bool started_ = false;
  std::vector<int64_t> start_, total_;  // by kind, in the order of first calls; what is missing is 0
};

}  // namespace hgemm
