// Calls counted per distinct decision, while somebody wants to know.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "core/problem.h"
#include "dispatch/select.h"

namespace hgemm {

struct CallCount {
  DType dtype, out_dtype;
  Major a_major, b_major;
  Activation act;
  bool has_bias, has_c;
  int align;
  int64_t batch, m, n, k;
  int ordinal;
  int variant;
  Source source;
  int64_t calls;
};

namespace detail {
extern std::atomic<bool> stats_on;
}  // namespace detail

inline bool stats_enabled() {
  return detail::stats_on.load(std::memory_order_relaxed);
}
void stats_enable(bool on);
/// The counter of such calls. It lives as long as the process: who makes many of them looks for it once.
std::atomic<int64_t>& stats_counter(const Problem& problem, int ordinal, const Decision& decision);
void stats_reset();
/// What was called at least once since the last reset.
std::vector<CallCount> stats_snapshot();

}  // namespace hgemm
