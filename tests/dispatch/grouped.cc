// Plans grouped products in every form and order on an H200, makes the copies that a plan asks for as the doors do, and
// computes the job that a kernel would get, element by element. Then there is no memory for the result or the copies.
// test_steps.py links it with the library's objects.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <string>
#include <vector>

#include "dispatch/context.h"
#include "dispatch/grouped.h"
#include "dispatch/models/grouped_table.h"
#include "dispatch/stats.h"
#include "one_device.h"

namespace {

using hgemm::GroupedPlan;
using hgemm::Matrix;

using Numbers = std::vector<uint16_t>;  // small integers in the place of 16-bit elements

/// A tensor of two or three dimensions in memory of its own, by rows or by columns, with padded rows.
struct Stored {
  Stored(std::vector<int64_t> shape, char order) : sizes(std::move(shape)), strides(sizes.size()) {
    const size_t n = sizes.size(), row = n - (order == 'N' ? 2 : 1), col = n - (order == 'N' ? 1 : 2);
    strides[col] = 1;
    strides[row] = (sizes[col] + 7) / 8 * 8;
    if (n == 3) strides[0] = strides[row] * sizes[row];
    data.resize(static_cast<size_t>((n == 3 ? sizes[0] : 1) * strides[row] * sizes[row] + 8));
    for (auto& x : data) x = static_cast<uint16_t>(std::rand() % 5);
    start = (16 - reinterpret_cast<uintptr_t>(data.data()) % 16) % 16 / 2;
  }
  uint16_t at(int64_t batch, int64_t row, int64_t col) const {
    const size_t n = sizes.size();
    return data[static_cast<size_t>(start + (n == 3 ? batch * strides[0] : 0) + row * strides[n - 2] +
                                    col * strides[n - 1])];
  }
  hgemm::TensorView view() const {
    return {.data = data.data() + start,
            .ndim = static_cast<int32_t>(sizes.size()),
            .sizes = sizes.data(),
            .strides = strides.data(),
            .dtype = hgemm::DType::kBF16};
  }
  std::vector<int64_t> sizes, strides;
  Numbers data;
  int64_t start = 0;
};

/// The copy of a matrix that a door makes: by rows, each at a multiple of 16 bytes.
Numbers padded_copy(const Stored& t, bool transposed) {
  const int64_t rows = t.sizes[transposed], columns = t.sizes[!transposed], pitch = (columns + 7) / 8 * 8;
  Numbers copy(static_cast<size_t>(rows * pitch));
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < columns; ++c) {
      copy[static_cast<size_t>(r * pitch + c)] = transposed ? t.at(0, c, r) : t.at(0, r, c);
    }
  }
  return copy;
}

int64_t element(const Matrix& x, int64_t batch, int64_t row, int64_t col) {
  return static_cast<const uint16_t*>(x.data)[batch * x.batch_stride[1] + row * x.row_stride + col * x.col_stride];
}

int failures = 0;

/// What is wrong with a plan's job, which gets the copies that the plan asks for, or null.
const char* error_of(const GroupedPlan& plan, const Stored& a, const Stored& b, const std::vector<int32_t>& ends) {
  const bool by_k = b.sizes.size() == 2 && a.sizes.size() == 2, by_columns = a.sizes.size() == 3;
  Numbers a_copy, b_copy;
  const hgemm::GroupedProduct& grouped = plan.job.grouped;
  hgemm::Problem p = grouped.product;
  if (plan.copies_a) {
    a_copy = plan.job.is_transposed ? padded_copy(b, true) : padded_copy(a, plan.groups != 0);
    p.a.data = a_copy.data();
  }
  if (plan.copies_b) {
    b_copy = padded_copy(b, false);
    p.b.data = b_copy.data();
  }
  const bool transposed = plan.job.is_transposed, divides_columns = grouped.divided == hgemm::Divided::kColumns;
  if (plan.rows != p.m || plan.columns != p.n || (plan.groups != 0) != by_k || plan.pitch < p.n ||
      plan.pitch % 8 != 0 || (transposed || divides_columns) != by_columns || (transposed && divides_columns)) {
    return "sizes of the result";
  }
  for (int64_t g = 0; g < static_cast<int64_t>(ends.size()); ++g) {
    const int64_t first = g == 0 ? 0 : ends[static_cast<size_t>(g - 1)], last = ends[static_cast<size_t>(g)];
    const bool by_rows = !by_k && !divides_columns;
    for (int64_t r = by_rows ? first : 0; r < (by_rows ? last : p.m); ++r) {
      for (int64_t c = divides_columns ? first : 0; c < (divides_columns ? last : p.n); ++c) {
        const int64_t row = transposed ? c : r, col = transposed ? r : c;  // of the caller's result
        int64_t got = 0, expected = 0;
        for (int64_t k = by_k ? first : 0; k < (by_k ? last : p.k); ++k) {
          got += element(p.a, g, r, k) * element(p.b, g, k, c);
          expected += a.at(g, row, k) * b.at(g, k, col);
        }
        if (got != expected) return "values";
      }
    }
  }
  return nullptr;
}

/// Plans a product, then again without memory for the copies that the plan asks for.
void check(const Stored& a, const Stored& b, const std::vector<int32_t>& ends, bool in_place, const char* what) {
  const int64_t groups = static_cast<int64_t>(ends.size()), stride = 1;
  const hgemm::TensorView offs{
      .data = ends.data(), .ndim = 1, .sizes = &groups, .strides = &stride, .dtype = hgemm::DType::kF32};
  GroupedPlan plan;
  hgemm::plan_grouped({.a = a.view(), .b = b.view(), .offs = &offs}, &plan);
  const auto fail = [&](const char* why) {
    std::fprintf(stderr, "%s: %s\n", what, why);
    ++failures;
  };
  if (plan.outcome != hgemm::Outcome::kOurs) return fail("not ours");
  if (const char* error = error_of(plan, a, b, ends)) fail(error);
  for (int kernel = 0; kernel < hgemm::grouped_kernel_count(); ++kernel) {
    GroupedPlan named;
    hgemm::plan_grouped({.a = a.view(), .b = b.view(), .offs = &offs, .variant = kernel}, &named);
    const bool takes_any = hgemm::grouped_kernel(kernel).name == std::string("sm80_mma_grouped_32x128");
    if (takes_any && (named.outcome == hgemm::Outcome::kOurs) != in_place) fail("not where the operands lie");
    if (named.outcome != hgemm::Outcome::kOurs) continue;
    if (const char* error = error_of(named, a, b, ends)) fail(error);
  }
  if (!plan.copies_a && !plan.copies_b && !plan.job.is_transposed) return;
  const hgemm::Outcome again = hgemm::plan_grouped_with_less(&plan);
  if (again != (in_place ? hgemm::Outcome::kOurs : hgemm::Outcome::kTorch)) return fail("without memory: not ours");
  if (!in_place) return;
  if (plan.copies_a || plan.copies_b || plan.job.is_transposed) return fail("without memory: copies");
  if (const char* error = error_of(plan, a, b, ends)) fail(error);
  if (hgemm::plan_grouped_with_less(&plan) != hgemm::Outcome::kTorch) fail("without any memory: not torch");
}

/// Plans a product whose memory is then not to be had, in a context that asks for `numerics`, and checks who computes
/// it, and as what it is counted. `retries`: how often a kernel that needs less
/// memory is tried.
void check_without_memory(int variant, hgemm::NumericsMode numerics, bool by_k, int retries, hgemm::Outcome expected) {
  const std::vector<int32_t> ends = {33, 33, 40, 51};
  const Stored a({by_k ? 12 : 51, by_k ? 51 : 44}, 'T');
  const Stored b = by_k ? Stored({51, 20}, 'N') : Stored({4, 44, 20}, 'N');
  const int64_t groups = static_cast<int64_t>(ends.size()), stride = 1;
  const hgemm::TensorView offs{
      .data = ends.data(), .ndim = 1, .sizes = &groups, .strides = &stride, .dtype = hgemm::DType::kF32};
  hgemm::detail::thread_settings = {.variant = hgemm::kAuto,
                                    .numerics = static_cast<int8_t>(numerics),
                                    .float32 = hgemm::kAuto,
                                    .tunes = 0,
                                    .reserved = 0};
  hgemm::Tally tally;
  tally.start();
  GroupedPlan plan;
  hgemm::plan_grouped({.a = a.view(), .b = b.view(), .offs = &offs, .variant = variant}, &plan);
  const bool was_ours = plan.outcome == hgemm::Outcome::kOurs;
  int retried = 0;
  while (hgemm::plan_grouped_with_less(&plan) == hgemm::Outcome::kOurs) ++retried;
  const hgemm::Outcome got = plan.outcome;
  tally.stop();
  HgemmCallCount rows[3] = {};
  const size_t kinds = tally.rows(false, rows, 3);
  hgemm::detail::thread_settings = hgemm::kNoSettings;
  const bool is_torchs = expected == hgemm::Outcome::kTorch;
  const HgemmCallKind& kind = rows[0].kind;
  const bool is_counted = kinds == 1 && rows[0].calls == 1 && kind.n == 20 && kind.m == (by_k ? 12 : 51) &&
                          (is_torchs ? kind.variant == hgemm::kTorch && kind.left == HGEMM_LEFT_MEMORY
                                     : kind.variant >= hgemm::kFirstGroupedKernel && kind.left == HGEMM_LEFT_NOT);
  if (!was_ours || retried != retries || got != expected || !is_counted) {
    std::fprintf(stderr,
                 "without memory: variant %d, numerics %d: ours %d, retries %d, outcome %d, kinds %d, counted %d\n",
                 variant, static_cast<int>(numerics), was_ours, retried, static_cast<int>(got), static_cast<int>(kinds),
                 is_counted);
    ++failures;
  }
}

/// Plans products of every dtype in a context that names torch, which computes and counts them as forced.
void check_torch_is_named() {
  const int32_t ends[] = {33, 51};
  const int64_t groups = 2, stride = 1, a_sizes[] = {51, 64}, b_sizes[] = {2, 64, 48};
  const int64_t a_strides[] = {64, 1}, b_strides[] = {64 * 48, 48, 1};
  const hgemm::TensorView offs{
      .data = ends, .ndim = 1, .sizes = &groups, .strides = &stride, .dtype = hgemm::DType::kI32};
  for (const hgemm::DType dtype : {hgemm::DType::kF16, hgemm::DType::kBF16, hgemm::DType::kF32}) {
    const auto view = [dtype](int32_t ndim, const int64_t* sizes, const int64_t* strides) {
      return hgemm::TensorView{.data = reinterpret_cast<const void*>(uintptr_t{256}),
                               .ndim = ndim,
                               .sizes = sizes,
                               .strides = strides,
                               .dtype = dtype};
    };
    for (const int variant : {hgemm::kAuto, hgemm::kTorch}) {
      hgemm::detail::thread_settings = {variant, hgemm::kAuto, hgemm::kAuto, 0, 0};
      hgemm::Tally tally;
      tally.start();
      GroupedPlan plan;
      hgemm::plan_grouped({.a = view(2, a_sizes, a_strides),
                           .b = view(3, b_sizes, b_strides),
                           .out_dtype = dtype,
                           .offs = &offs,
                           .offs_is_int32 = true},
                          &plan);
      tally.stop();
      HgemmCallCount row = {};
      const bool is_forced = tally.rows(false, &row, 1) == 1 &&
                             row.kind.source == static_cast<int8_t>(hgemm::Source::kForced) &&
                             row.kind.variant == hgemm::kTorch;
      const bool is_torchs = variant == hgemm::kTorch;
      if (plan.outcome == (is_torchs ? hgemm::Outcome::kTorch : hgemm::Outcome::kOurs) && is_forced == is_torchs)
        continue;
      std::fprintf(stderr, "torch is named: %s, variant %d\n", dtype_name(dtype), variant);
      ++failures;
    }
  }
  hgemm::detail::thread_settings = hgemm::kNoSettings;
}

int asked_to_time = 0;
constexpr int kTimed = 1;

/// Stands in for the tuner: kernel kTimed takes half of torch's time, and others were not timed.
int time_one_kernel(const HgemmGroupedTuning* tuning) {
  ++asked_to_time;
  hgemm::GroupedKey key;
  std::copy(std::begin(tuning->key), std::end(tuning->key), key.begin());
  hgemm::add_grouped_times(key, {{hgemm::kTorch, 10.0}, {kTimed, 5.0}});
  return 0;
}

/// Plans a product in contexts with and without tuning. It is timed once, and its times decide from then on. Those
/// whose operands have to be copied are not timed.
void check_tuning() {
  const std::vector<int32_t> ends = {33, 33, 40, 51};
  const int64_t groups = static_cast<int64_t>(ends.size()), stride = 1;
  const hgemm::TensorView offs{
      .data = ends.data(), .ndim = 1, .sizes = &groups, .strides = &stride, .dtype = hgemm::DType::kF32};
  const auto plan_of = [&](const Stored& a, const Stored& b, int8_t tunes, hgemm::NumericsMode numerics) {
    hgemm::detail::thread_settings = {.variant = hgemm::kAuto,
                                      .numerics = static_cast<int8_t>(numerics),
                                      .float32 = hgemm::kAuto,
                                      .tunes = tunes,
                                      .reserved = 0};
    GroupedPlan plan;
    hgemm::plan_grouped({.a = a.view(), .b = b.view(), .offs = &offs}, &plan);
    hgemm::detail::thread_settings = hgemm::kNoSettings;
    return plan.outcome == hgemm::Outcome::kOurs ? plan.job.kernel : hgemm::kTorch;
  };
  const auto expect = [](bool holds, const char* what) {
    if (holds) return;
    std::fprintf(stderr, "tuning: %s\n", what);
    ++failures;
  };
  using hgemm::NumericsMode;
  const Stored a({51, 48}, 'N'), b({4, 48, 24}, 'T');
  hgemm::set_grouped_tuner(time_one_kernel);
  const int before = plan_of(a, b, 0, NumericsMode::kFast);
  expect(before != kTimed && asked_to_time == 0, "timed though nobody asked");
  expect(plan_of(a, b, 1, NumericsMode::kBatchInvariant) == before && asked_to_time == 0, "timed for other numerics");
  expect(plan_of(a, b, 1, NumericsMode::kFast) == kTimed && asked_to_time == 1, "not timed, or its times not used");
  expect(plan_of(a, b, 1, NumericsMode::kFast) == kTimed && asked_to_time == 1, "timed again");
  expect(plan_of(a, b, 0, NumericsMode::kFast) == kTimed, "its times not used without tuning");
  expect(plan_of(a, b, 0, NumericsMode::kBatchInvariant) == before, "its times used for other numerics");
  plan_of(Stored({51, 48}, 'T'), b, 1, NumericsMode::kFast);
  expect(asked_to_time == 1, "timed with an operand that has to be copied");
  hgemm::clear_grouped_times();
  expect(plan_of(a, b, 0, NumericsMode::kFast) == before, "times stay");
  hgemm::set_grouped_tuner(nullptr);
  expect(plan_of(a, b, 1, NumericsMode::kFast) == before, "a plan without a tuner");
}

/// Plans a product with a gate for each kernel. Those that apply it have half of the columns in their result.
void check_gate() {
  const std::vector<int32_t> ends = {33, 33, 40, 51};
  const int64_t groups = static_cast<int64_t>(ends.size()), stride = 1;
  const hgemm::TensorView offs{
      .data = ends.data(), .ndim = 1, .sizes = &groups, .strides = &stride, .dtype = hgemm::DType::kF32};
  struct Case {
    const char *a_order, *b_order;
    int64_t n;
    bool may_gate;
  };
  int gating = 0;
  for (const Case& c : {Case{"N", "T", 48, true}, Case{"N", "N", 48, false},  // the weights are not K-major
                        Case{"T", "T", 48, false},                            // x is copied
                        Case{"N", "T", 40, false}}) {                         // gate and up are not whole units
    const Stored a({51, 48}, *c.a_order), b({4, 48, c.n}, *c.b_order);
    for (int kernel = 0; kernel < hgemm::grouped_kernel_count(); ++kernel) {
      GroupedPlan plan;
      hgemm::plan_grouped({.a = a.view(),
                           .b = b.view(),
                           .offs = &offs,
                           .act = hgemm::Activation::kSilu,
                           .gated = true,
                           .variant = kernel},
                          &plan);
      if (plan.outcome != hgemm::Outcome::kOurs) continue;
      const bool gates = c.may_gate && hgemm::grouped_kernel(kernel).gates;
      gating += gates;
      const hgemm::Problem& p = plan.job.grouped.product;
      const bool is_right = plan.finishes == gates && plan.columns == (gates ? c.n / 2 : c.n) &&
                            plan.pitch == hgemm::grouped_pitch(plan.columns, p.dtype) && p.gated == gates &&
                            p.n == c.n && p.act == (gates ? hgemm::Activation::kSilu : hgemm::Activation::kNone);
      if (is_right) continue;
      std::fprintf(stderr, "gate: %s%s, n %d, kernel %d\n", c.a_order, c.b_order, static_cast<int>(c.n), kernel);
      ++failures;
    }
  }
  if (gating > 0) return;
  std::fprintf(stderr, "gate: no kernel applies it\n");
  ++failures;
}

/// Plans a product of 16 groups of 160 rows on average, for which two kernels are launched, unless it has a gate.
void check_second_kernel() {
  const std::vector<int32_t> ends(16, 2560);
  const int64_t groups = 16, stride = 1, a_sizes[] = {2560, 2048}, b_sizes[] = {16, 2048, 2048};
  const int64_t a_strides[] = {2048, 1}, b_strides[] = {2048 * 2048, 1, 2048};
  const hgemm::TensorView offs{
      .data = ends.data(), .ndim = 1, .sizes = &groups, .strides = &stride, .dtype = hgemm::DType::kI32};
  const auto view = [](int32_t ndim, const int64_t* sizes, const int64_t* strides) {
    return hgemm::TensorView{.data = reinterpret_cast<const void*>(uintptr_t{256}),
                             .ndim = ndim,
                             .sizes = sizes,
                             .strides = strides,
                             .dtype = hgemm::DType::kBF16};
  };
  for (const bool gated : {false, true}) {
    GroupedPlan plan;
    hgemm::plan_grouped(
        {.a = view(2, a_sizes, a_strides), .b = view(3, b_sizes, b_strides), .offs = &offs, .gated = gated}, &plan);
    const int second = plan.job.second;
    const bool is_right = gated ? second == hgemm::kTorch
                                : second != hgemm::kTorch && hgemm::grouped_kernel(second).name ==
                                                                 std::string("sm90_wgmma_grouped_192x128_1x2");
    if (plan.outcome == hgemm::Outcome::kOurs && is_right && plan.job.grouped.few_rows == 0) continue;
    std::fprintf(stderr, "second kernel: gated %d, got %d\n", gated, second);
    ++failures;
  }
  const hgemm::WorkTiles tiles{.rows = 192, .columns = 8, .at_once = 66, .ns = 4'000'000'000};
  const uint32_t row_tiles[] = {0, 1, 8, 9, 16, 17, 100'000'000};
  const uint64_t waves[] = {0, 1, 1, 2, 2, 3, 12'121'213};
  for (size_t i = 0; i < std::size(waves); ++i) {
    if (tiles.product_ns(row_tiles[i]) == waves[i] * 4'000'000'000) continue;
    std::fprintf(stderr, "second kernel: time of %u row tiles\n", row_tiles[i]);
    ++failures;
  }
}

}  // namespace

int main() {
  check_torch_is_named();
  check_second_kernel();
  check_tuning();
  check_gate();
  using hgemm::NumericsMode;
  using hgemm::Outcome;
  check_without_memory(hgemm::kAuto, NumericsMode::kFast, false, 1, Outcome::kTorch);
  check_without_memory(hgemm::kAuto, NumericsMode::kFast, true, 0, Outcome::kTorch);
  check_without_memory(0, NumericsMode::kFast, false, 0, Outcome::kRefused);
  check_without_memory(hgemm::kAuto, NumericsMode::kBatchInvariant, false, 1, Outcome::kTorch);
  check_without_memory(hgemm::kAuto, NumericsMode::kBatchInvariantOrRaise, false, 1, Outcome::kRefused);
  check_without_memory(hgemm::kAuto, NumericsMode::kBatchInvariantOrRaise, true, 0, Outcome::kRefused);
  const std::vector<int32_t> ends = {33, 33, 40, 51};
  for (const char* order : {"NN", "NT", "TN", "TT"}) {
    const bool in_place = std::string(order) != "TT";
    check(Stored({51, 44}, order[0]), Stored({4, 44, 20}, order[1]), ends, in_place,
          (std::string("rows ") + order).c_str());
    check(Stored({12, 51}, order[0]), Stored({51, 20}, order[1]), ends, in_place, (std::string("k ") + order).c_str());
    check(Stored({4, 12, 44}, order[0]), Stored({44, 51}, order[1]), ends, in_place,
          (std::string("columns ") + order).c_str());
  }
  return failures;
}
