#include "dispatch/c_api.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "core/chip.h"
#include "core/device.h"
#include "core/read.h"
#include "dispatch/canonical.h"
#include "dispatch/choose.h"
#include "dispatch/context.h"
#include "dispatch/devices.h"
#include "dispatch/explain.h"
#include "dispatch/grouped.h"
#include "dispatch/invariance.h"
#include "dispatch/models/grouped_table.h"
#include "dispatch/models/learned.h"
#include "dispatch/models/table.h"
#include "dispatch/models/torch_model.h"
#include "dispatch/registry.h"
#include "dispatch/report.h"
#include "dispatch/select.h"
#include "dispatch/stats.h"

namespace {

using namespace hgemm;

thread_local std::string last_error;

/// Runs `body` and returns 0. Turns an exception into this thread's message and returns 1.
template <class Body>
int guarded(const Body& body) {
  try {
    body();
    return 0;
  } catch (const std::exception& e) {
    last_error = e.what();
    return 1;
  }
}

[[noreturn]] void fail(const std::string& message) {
  throw std::invalid_argument("hgemm: " + message);
}

void require_forceable(int id) {
  if (id < kTorch || id >= variant_count()) fail("there is no kernel with id " + std::to_string(id));
}

template <class Enum>
Enum checked(int32_t value, Enum last, const char* what) {
  if (value < 0 || value > static_cast<int32_t>(last))
    fail(what + (" must be 0 to " + std::to_string(static_cast<int32_t>(last))) + ", got " + std::to_string(value));
  return static_cast<Enum>(value);
}

NumericsMode numerics_of(int32_t value) {
  return value == kAuto ? default_numerics() : checked(value, NumericsMode::kBatchInvariantOrRaise, "numerics");
}

Float32Mode float32_of(int32_t value) {
  return value == kAuto ? default_float32() : checked(value, Float32Mode::kTf32, "float32");
}

DeviceFacts facts_of(const HgemmFacts& f) {
  return {.cc = f.cc,
          .sm_count = f.sm_count,
          .smem_optin = f.smem_optin,
          .smem_per_sm = f.smem_per_sm,
          .l2_bytes = f.l2_bytes,
          .dram_gbs = f.dram_gbs,
          .slow_float64 = f.slow_float64 != 0};
}

HgemmFacts facts_of(const DeviceFacts& f) {
  return {.cc = f.cc,
          .sm_count = f.sm_count,
          .smem_optin = f.smem_optin,
          .smem_per_sm = f.smem_per_sm,
          .l2_bytes = f.l2_bytes,
          .dram_gbs = f.dram_gbs,
          .slow_float64 = f.slow_float64};
}

/// An address with this alignment, for descriptions of tensors without memory. Nothing dereferences it.
void* address_of(int alignment) {
  return reinterpret_cast<void*>(static_cast<uintptr_t>(std::max(alignment, 1)));
}

TensorView view_of(const HgemmTensor& t, const char* name) {
  if (t.ndim < 0 || t.ndim > 8) fail(std::string(name) + " must have 0 to 8 dimensions, got " + std::to_string(t.ndim));
  return {.data = address_of(t.align),
          .ndim = t.ndim,
          .sizes = t.sizes,
          .strides = t.strides,
          .dtype = checked(t.dtype, DType::kI8, "dtype")};
}

Problem problem_of(const HgemmQuery& q) {
  constexpr int kFresh = 16;  // alignment of new memory: allocators promise more
  Operands operands;
  operands.op = checked(q.op, Op::kLinear, "op");
  operands.a = view_of(q.a, "a");
  operands.b = view_of(q.b, "b");
  TensorView c;
  if (q.c.ndim >= 0) {
    c = view_of(q.c, "c");
    operands.c = &c;
    operands.beta = 1.0f;
  }
  operands.act = checked(q.act, Activation::kSilu, "act");
  const DType own_dtype = operands.a.dtype == DType::kI8 ? DType::kI32 : operands.a.dtype;
  operands.out_dtype = q.out_dtype < 0 ? own_dtype : checked(q.out_dtype, DType::kI32, "out_dtype");
  Canonical canonical;
  if (!canonicalize(operands, &canonical)) throw std::invalid_argument(canonical.error);
  Problem& p = canonical.problem;
  if (q.same_address == 0) p.b_is_a_transposed = false;  // view_of gave both the same address
  p.d.data = address_of(kFresh);
  if (canonical.copy_a.needed) p.a.data = address_of(kFresh);
  if (canonical.copy_b.needed) p.b.data = address_of(kFresh);
  if (q.has_bias) p.bias = address_of(kFresh);
  ask_for(numerics_of(q.numerics), float32_of(q.float32), &p);
  p.most_workspace = most_workspace();
  return p;
}

/// A query as the request that plan_grouped() takes.
struct GroupedQuery {
  explicit GroupedQuery(const HgemmGroupedQuery& q)
      : offs{.data = nullptr, .ndim = 1, .sizes = &q.groups, .strides = &kOne, .dtype = DType::kI32},
        request{.a = view_of(q.a, "a"),
                .b = view_of(q.b, "b"),
                .out_dtype = static_cast<DType>(q.a.dtype),
                .offs = &offs,
                .as_torch = q.as_torch != 0} {
    const bool divides = request.a.ndim + request.b.ndim == 5 || (request.a.ndim == 2 && request.b.ndim == 2);
    if (!divides || q.a.dtype != q.b.dtype || q.groups < 0) throw std::invalid_argument("not a grouped matmul");
  }
  static constexpr int64_t kOne = 1;
  hgemm::TensorView offs;
  hgemm::GroupedRequest request;
};

/// The table's form of an entry. Throws std::invalid_argument, with the fault, where the entry has impossible values.
TableEntry table_entry(const HgemmTableEntry& e, const HgemmTiming* timings, int timing_count) {
  const auto require = [](bool holds, const char* otherwise) {
    if (!holds) throw std::invalid_argument(otherwise);
  };
  require(e.first_timing >= 0 && e.timing_count >= 0 && e.first_timing <= timing_count - e.timing_count,
          "refers to timings that do not exist");
  require(e.dtype >= 0 && e.dtype <= static_cast<int32_t>(DType::kF32), "has an unknown dtype");
  require((e.a_major | e.b_major | 1) == 1, "has an unknown layout");
  TableEntry entry{.cc = e.cc,
                   .sm_count = e.sm_count,
                   .l2_bytes = e.l2_bytes,
                   .dram_gbs = e.dram_gbs,
                   .dtype = static_cast<DType>(e.dtype),
                   .a_major = static_cast<Major>(e.a_major),
                   .b_major = static_cast<Major>(e.b_major),
                   .align = e.align,
                   .batch = e.batch,
                   .m = e.m,
                   .n = e.n,
                   .k = e.k,
                   .timings = {}};
  for (int i = 0; i < e.timing_count; ++i) {
    const HgemmTiming& t = timings[e.first_timing + i];
    entry.timings.push_back({t.variant, t.us});
  }
  if (const char* fault = fault_of(entry)) throw std::invalid_argument(fault);
  return entry;
}

void copy_text(char* to, size_t capacity, const std::string& from) {
  const size_t n = std::min(capacity - 1, from.size());
  std::memcpy(to, from.data(), n);
  to[n] = '\0';
}

}  // namespace

int hgemm_abi(int32_t* sizes, int capacity) {
  constexpr int32_t kSizes[] = {sizeof(HgemmTensor),       sizeof(HgemmFacts),        sizeof(HgemmVariantInfo),
                                sizeof(HgemmQuery),        sizeof(HgemmCandidate),    sizeof(HgemmTiming),
                                sizeof(HgemmTableEntry),   sizeof(HgemmCallKind),     sizeof(HgemmDecision),
                                sizeof(HgemmCallCount),    sizeof(HgemmSettings),     sizeof(HgemmTuning),
                                sizeof(HgemmGroupedQuery), sizeof(HgemmGroupedTuning)};
  constexpr int kCount = sizeof(kSizes) / sizeof(kSizes[0]);
  std::copy(kSizes, kSizes + std::min(kCount, capacity), sizes);
  return kCount;
}

const char* hgemm_last_error(void) {
  return last_error.c_str();
}

int hgemm_has_device_code(void) {
#ifdef HGEMM_NO_DEVICE_CODE
  return 0;
#else
  return 1;
#endif
}

int hgemm_variant_count(void) {
  return variant_count();
}

int hgemm_variant_info(int id, HgemmVariantInfo* info) {
  return guarded([&] {
    if (id < 0 || id >= variant_count()) fail("there is no kernel with id " + std::to_string(id));
    const Variant& v = variant(id);
    *info = {.name = v.name,
             .family = family_name(id),
             .min_cc = v.min_cc,
             .max_cc = v.max_cc,
             .dtypes = v.dtypes,
             .arithmetic = static_cast<int32_t>(v.arithmetic),
             .tile = {v.tile.bm, v.tile.bn, v.tile.bk, v.tile.stages, v.tile.threads},
             .smem_bytes = v.smem_bytes,
             .splits_k = v.splits_k,
             .added = v.family == Family::kAdded,
             .sums = static_cast<int32_t>(v.sums)};
  });
}

int hgemm_add_variants(const void* variants, int count, int variant_bytes, const char* family) {
  return guarded([&] {
    if (variant_bytes != sizeof(Variant)) fail("these kernels were built for another version of this library");
    add_variants(static_cast<const Variant*>(variants), count, family);
  });
}

const char* hgemm_grouped_name(int index) {
  return index >= 0 && index < hgemm::grouped_kernel_count() ? hgemm::grouped_kernel(index).name : nullptr;
}

int hgemm_grouped_choice(const HgemmGroupedQuery* query, const HgemmFacts* facts, const char** reason) {
  thread_local std::string text;
  int kernel = kTorch;
  const int status = guarded([&] {
    const GroupedQuery q(*query);
    const hgemm::GroupedDecision decision =
        hgemm::choose_grouped(q.request, numerics_of(query->numerics), float32_of(query->float32), facts_of(*facts));
    text = hgemm::reason_of(decision);
    kernel = decision.kernel;
  });
  if (status != 0) return -3;
  *reason = text.c_str();
  return kernel;
}

const char* hgemm_grouped_refusal(int index, const HgemmGroupedQuery* query, const HgemmFacts* facts) {
  thread_local std::string text;
  if (guarded([&] { text = hgemm::why_not(index, GroupedQuery(*query).request, facts_of(*facts)); }) != 0)
    return nullptr;
  return text.c_str();
}

void hgemm_set_grouped_tuner(int (*tuner)(const HgemmGroupedTuning*)) {
  hgemm::set_grouped_tuner(tuner);
}

int hgemm_grouped_times_add(const int64_t* key, const HgemmTiming* timings, int count) {
  return guarded([&] {
    hgemm::GroupedKey words;
    std::copy_n(key, words.size(), words.begin());
    std::vector<hgemm::Timing> times;
    for (int i = 0; i < count; ++i) {
      const HgemmTiming& t = timings[i];
      if (t.variant != kTorch && (t.variant < 0 || t.variant >= hgemm::grouped_kernel_count())) {
        fail("there is no grouped kernel with index " + std::to_string(t.variant));
      }
      if (!(t.us >= 1e-3 && t.us <= 1e9)) fail("a time is outside of 0.001 to 1e9 us");
      times.push_back({t.variant, t.us});
    }
    hgemm::add_grouped_times(words, std::move(times));
  });
}

void hgemm_grouped_times_clear(void) {
  hgemm::clear_grouped_times();
}

int hgemm_find_variant(const char* name) {
  return find_variant(name);
}

int hgemm_chips(int32_t* ccs, int capacity) {
  for (int i = 0; i < std::min(chip_count(), capacity); ++i) ccs[i] = chip_at(i).facts.cc;
  return chip_count();
}

int hgemm_preset_facts(int cc, HgemmFacts* facts) {
  return guarded([&] {
    DeviceFacts preset;
    if (!preset_facts(cc, &preset)) fail("unknown GPU architecture sm_" + std::to_string(cc));
    *facts = facts_of(preset);
  });
}

int hgemm_device_facts(int ordinal, HgemmFacts* facts) {
  return guarded([&] {
    DeviceFacts device;
    if (const Status status = query_device_facts(ordinal, &device)) {
      fail("device " + std::to_string(ordinal) + ": " + status_string(status));
    }
    *facts = facts_of(device);
  });
}

const char* hgemm_device_fault(int ordinal) {
  return fault_of_device(ordinal).c_str();
}

const char* hgemm_fault_of(const char* archs, int cc, int status) {
  thread_local std::string fault;
  fault = device_fault(archs != nullptr ? archs : built_archs(), cc, status);
  return fault.c_str();
}

void hgemm_set_warning(void (*warn)(const char* line)) {
  set_warning(warn);
}

int hgemm_read(const void* data, int64_t bytes, void* sink, void* stream) {
  return guarded([&] {
    if (reinterpret_cast<uintptr_t>(data) % 16 != 0 || bytes % 16 != 0) {
      fail("read: address and bytes must be multiples of 16, got " + std::to_string(bytes) + " bytes");
    }
    if (const Status status = launch_read(data, bytes, sink, stream))
      fail(std::string("read: ") + status_string(status));
  });
}

int hgemm_explain(const HgemmQuery* query, HgemmDecision* decision, HgemmCandidate* candidates) {
  return guarded([&] {
    const Problem p = problem_of(*query);
    const int forced = query->variant == kAuto ? default_variant() : query->variant;
    require_forceable(forced);
    const DeviceFacts facts = facts_of(query->facts);
    const Explanation e = explain(p, facts, forced);
    decision->kind = kind_of(
        {.problem = p, .ordinal = 0, .cc = facts.cc, .decision = e.decision, .left = HGEMM_LEFT_NOT, .site = 0});
    copy_text(decision->reason, sizeof(decision->reason), e.reason);
    if (!candidates) return;
    for (size_t i = 0; i < e.candidates.size(); ++i) {
      const Candidate& c = e.candidates[i];
      candidates[i] = {.variant = c.variant,
                       .eligible = c.eligible,
                       .forced_only = c.forced_only,
                       .reserved = 0,
                       .predicted_us = c.predicted_us,
                       .measured_us = c.measured_us,
                       .reason = {}};
      copy_text(candidates[i].reason, sizeof(candidates[i].reason), c.reason);
    }
  });
}

int hgemm_features(const HgemmQuery* query, int id, double best_us, float* features, int capacity) {
  int count = -1;
  guarded([&] {
    if (id != kTorch && (id < 0 || id >= variant_count())) fail("there is no kernel with id " + std::to_string(id));
    const Problem p = problem_of(*query);
    const DeviceFacts facts = facts_of(query->facts);
    std::array<float, std::max(kKernelFeatures, kTorchFeatures)> all{};
    const Alignments alignments = alignments_of(p);
    shape_features(p, alignments, all.data());
    if (id == kTorch) {
      torch_features(p, facts, torch_product_us(p, facts, alignments), best_us, all.data());
    } else {
      const Variant* const kernel = &variant(id);
      const double predicted_us = kernel->predict_us(p, facts);
      Rows rows;
      kernel_features(&kernel, &predicted_us, 1, p, facts, all.data(), &rows);
      for (int f = 0; f < kOwnFeatures; ++f) all[static_cast<size_t>(kShapeFeatures + f)] = rows.feature[f][0];
    }
    count = id == kTorch ? kTorchFeatures : kKernelFeatures;
    std::copy_n(all.begin(), std::min(count, capacity), features);
  });
  return count;
}

double hgemm_select_ns(const HgemmQuery* query, int cached, int iterations) {
  double mean = -1;
  guarded([&] {
    constexpr int kNoDevice = -1;
    const Problem p = problem_of(*query);
    const DeviceFacts facts = facts_of(query->facts);
    require_forceable(query->variant);
    int sum = choose(p, facts, kNoDevice, query->variant).variant;
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < iterations; ++i) {
      sum += (cached ? choose(p, facts, kNoDevice, query->variant) : select(p, facts, query->variant)).variant;
    }
    const std::chrono::duration<double, std::nano> elapsed = std::chrono::steady_clock::now() - start;
    volatile int keep = sum;  // the loop's result is used
    static_cast<void>(keep);
    mean = elapsed.count() / std::max(iterations, 1);
  });
  return mean;
}

int hgemm_table_set(const HgemmTableEntry* entries, int entry_count, const HgemmTiming* timings, int timing_count) {
  int skipped = 0;
  std::string first;
  const int status = guarded([&] {
    std::vector<TableEntry> table;
    table.reserve(static_cast<size_t>(entry_count));
    for (int i = 0; i < entry_count; ++i) {
      try {
        table.push_back(table_entry(entries[i], timings, timing_count));
      } catch (const std::invalid_argument& e) {
        if (skipped++ == 0) first = "entry " + std::to_string(i) + " " + e.what();
      }
    }
    set_table(table);
  });
  if (status != 0) return -1;
  if (skipped > 0) last_error = first;
  return skipped;
}

int hgemm_table_add(const HgemmTableEntry* entry, const HgemmTiming* timings, int timing_count) {
  return guarded([&] { add_to_table(table_entry(*entry, timings, timing_count)); });
}

int hgemm_table_size(const HgemmFacts* facts) {
  return table_size(facts_of(*facts));
}

int hgemm_set_default_variant(int id) {
  return guarded([&] {
    require_forceable(id);
    set_default_variant(id);
  });
}

int hgemm_default_variant(void) {
  return default_variant();
}

int hgemm_set_default_numerics(int numerics) {
  return guarded([&] { set_default_numerics(numerics_of(numerics)); });
}

int hgemm_set_default_float32(int float32) {
  return guarded([&] { set_default_float32(checked(float32, Float32Mode::kSplit, "float32")); });
}

void hgemm_set_most_workspace(int64_t bytes) {
  set_most_workspace(bytes < 0 ? kMostWorkspace : bytes);
}

void hgemm_set_log(void (*log)(const char* line)) {
  set_log(log);
}

void hgemm_set_first_use(void (*action)(void)) {
  set_first_use(action);
}

int hgemm_standing_numerics(void) {
  return static_cast<int>(standing_numerics());
}

int hgemm_standing_float32(void) {
  return static_cast<int>(standing_float32());
}
