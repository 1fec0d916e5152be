#include "dispatch/tuning.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <exception>
#include <type_traits>
#include <vector>

#include "core/device.h"
#include "dispatch/c_api.h"
#include "dispatch/contenders.h"
#include "dispatch/context.h"
#include "dispatch/explain.h"
#include "dispatch/invariance.h"
#include "dispatch/models/table.h"
#include "dispatch/plan.h"
#include "dispatch/registry.h"

namespace hgemm {
namespace {

using TunerFn = int (*)(const HgemmTuning*);

constexpr double kReach = 2.0;  // kernels that are predicted to take longer than this times the fastest are not timed

// HgemmTuning::state contains a Job whose kernel is still to be named.
static_assert(sizeof(Job) <= sizeof(HgemmTuning::state) && std::is_trivially_copyable_v<Job>);

std::atomic<TunerFn> the_tuner{nullptr};

Job job_of(const HgemmTuning& tuning) {
  Job job;
  std::memcpy(&job, tuning.state, sizeof(job));
  return job;
}

/// Whether the table has this shape in the matmul's own dtype.
bool is_known(const Problem& product, const DeviceFacts& facts) {
  double scratch[kMaxVariants + 1];
  const Knowledge known = table_lookup(product, facts, alignments_of(product), scratch, /*nearby=*/false);
  return known.kind == Knowledge::Kind::kExact && known.dtype == product.dtype;
}

bool any_can_run(const Problem& product, const DeviceFacts& facts) {
  const std::vector<int>& ids = automatic_variants();
  return std::any_of(ids.begin(), ids.end(), [&](int id) {
    return may_be_chosen(variant(id), product) && can_run(variant(id), product, facts, nullptr);
  });
}

/// The candidates to time: torch, then the kernel that would be chosen, then the others within kReach of the fastest
/// prediction, the fastest first.
std::vector<Timing> candidates_of(const Problem& product, const DeviceFacts& facts) {
  const Explanation explanation = explain(product, facts, kAuto);
  std::vector<Timing> able;
  for (int id : automatic_variants()) {
    const Candidate& c = explanation.candidates[static_cast<size_t>(id)];
    if (may_be_chosen(variant(id), product) && c.eligible && std::isfinite(c.predicted_us)) {
      able.push_back({id, c.predicted_us});
    }
  }
  std::sort(able.begin(), able.end(),
            [](const Timing& x, const Timing& y) { return x.us != y.us ? x.us < y.us : x.variant < y.variant; });
  const double longest = able.empty() ? 0 : kReach * able.front().us;
  const auto is_chosen = [&](const Timing& t) { return t.variant == explanation.decision.variant; };
  able.erase(std::remove_if(able.begin(), able.end(), [&](const Timing& t) { return t.us > longest && !is_chosen(t); }),
             able.end());
  std::stable_partition(able.begin(), able.end(), is_chosen);
  able.insert(able.begin(), {kTorch, explanation.candidates.back().predicted_us});
  return able;
}

void describe_operand(const Matrix& x, const void** data, int64_t (&strides)[4]) {
  *data = x.data;
  strides[0] = x.batch_stride[0];
  strides[1] = x.batch_stride[1];
  strides[2] = x.row_stride;
  strides[3] = x.col_stride;
}

}  // namespace

bool tune(const Problem& p, const DeviceFacts& facts, int ordinal) {
  const TunerFn tuner = the_tuner.load(std::memory_order_relaxed);
  if (tuner == nullptr) return true;
  // The tuner times on a stream of its own, which has all SMs.
  DeviceFacts device;
  if (query_device_facts(ordinal, &device) == 0 && device.sm_count != facts.sm_count) return true;
  Problem product = without_epilogue(p);
  product.b_is_a_transposed = false;  // an entry is of ordinary products, by which x @ x.T is predicted as well
  TableEntry entry;
  if (!entry_of(product, facts, &entry) || is_known(product, facts) || !any_can_run(product, facts)) return true;
  HgemmTuning tuning{};
  tuning.entry = {.cc = entry.cc,
                  .sm_count = entry.sm_count,
                  .l2_bytes = entry.l2_bytes,
                  .dtype = static_cast<int32_t>(entry.dtype),
                  .a_major = static_cast<int32_t>(entry.a_major),
                  .b_major = static_cast<int32_t>(entry.b_major),
                  .align = entry.align,
                  .batch = entry.batch,
                  .m = entry.m,
                  .n = entry.n,
                  .k = entry.k,
                  .first_timing = 0,
                  .timing_count = 0,
                  .dram_gbs = entry.dram_gbs};
  tuning.ordinal = ordinal;
  std::copy_n(product.batch, 2, tuning.batch);
  describe_operand(product.a, &tuning.a, tuning.a_strides);
  describe_operand(product.b, &tuning.b, tuning.b_strides);
  tuning.d = product.d.data;
  Job job;
  job.problem = product;
  job.facts = facts;
  std::memcpy(tuning.state, &job, sizeof(job));
  return tuner(&tuning) == 0;
}

}  // namespace hgemm

void hgemm_set_tuner(int (*tuner)(const HgemmTuning*)) {
  hgemm::the_tuner.store(tuner);
}

int hgemm_tuning_candidates(const HgemmTuning* tuning, HgemmTiming* candidates, int capacity) {
  try {
    const hgemm::Job job = hgemm::job_of(*tuning);
    const std::vector<hgemm::Timing> all = hgemm::candidates_of(job.problem, job.facts);
    const int count = std::min(static_cast<int>(all.size()), capacity);
    for (int i = 0; i < count; ++i)
      candidates[i] = {all[static_cast<size_t>(i)].variant, 0, all[static_cast<size_t>(i)].us};
    return count;
  } catch (const std::exception&) {
    return -1;
  }
}

int64_t hgemm_tuning_workspace(const HgemmTuning* tuning, int id) {
  const hgemm::Job job = hgemm::job_of(*tuning);
  return static_cast<int64_t>(hgemm::variant(id).workspace(job.problem, job.facts));
}

const char* hgemm_tuning_launch(const HgemmTuning* tuning, int id, const void* a, const void* b, void* d,
                                void* workspace, void* stream) {
  hgemm::Job job = hgemm::job_of(*tuning);
  job.variant = id;
  const hgemm::Memory memory{.d = d,
                             .pre_activation = nullptr,
                             .a_copy = const_cast<void*>(a),
                             .b_copy = const_cast<void*>(b),
                             .workspace = workspace};
  const hgemm::Status status = hgemm::launch(job, memory, stream);
  return status == 0 ? nullptr : hgemm::status_string(status);
}
