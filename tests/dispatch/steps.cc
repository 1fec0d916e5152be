// Calls the steps of a decision and of a plan one by one. The program is linked with the library's objects, except
// devices.cc, which asks CUDA for the machine's devices.
#include <malloc.h>

#include <array>
#include <cmath>
#include <complex>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "check.h"
#include "core/chip.h"
#include "dispatch/choose.h"
#include "dispatch/contenders.h"
#include "dispatch/context.h"
#include "dispatch/estimates.h"
#include "dispatch/margin.h"
#include "dispatch/models/learned.h"
#include "dispatch/plan.h"
#include "dispatch/registry.h"
#include "dispatch/select.h"
#include "dispatch/stats.h"
#include "dispatch/verdict.h"
#include "one_device.h"

namespace {

size_t asked_for = 0, in_use = 0;  // bytes

}  // namespace

void* operator new(size_t bytes) {
  void* const memory = std::malloc(bytes);
  if (memory == nullptr) std::abort();
  asked_for += bytes;
  in_use += malloc_usable_size(memory);
  return memory;
}
void operator delete(void* memory) noexcept {
  in_use -= malloc_usable_size(memory);
  std::free(memory);
}
void operator delete(void* memory, size_t) noexcept {
  operator delete(memory);
}

namespace hgemm {

namespace {

/// A row-major (m, k) times the transpose of a row-major (n, k), both contiguous and aligned.
Problem nt_problem(int64_t m, int64_t n, int64_t k) {
  Problem p;
  p.m = m;
  p.n = n;
  p.k = k;
  p.a.row_stride = k;
  p.a.col_stride = 1;
  p.b.row_stride = 1;
  p.b.col_stride = k;
  p.d.row_stride = n;
  p.d.col_stride = 1;
  return p;
}

DeviceFacts facts_of(int cc) {
  return chip_of(cc).facts;
}

bool has_family(const Contenders& contenders, Family family) {
  for (const Contender& c : contenders) {
    if (variant(c.id).family == family) return true;
  }
  return false;
}

void test_alignments() {
  Problem p = nt_problem(64, 64, 64);
  CHECK(alignments_of(p).least() == 16 && alignments_of(p).all_whole());
  p.b.col_stride = 66;  // 132 bytes
  p.d.data = reinterpret_cast<void*>(uintptr_t{8});
  const Alignments alignments = alignments_of(p);
  CHECK(alignments.a == 16 && alignments.b == 4 && alignments.d == 8);
  CHECK(alignments.least() == 4 && !alignments.all_whole());
}

/// A number of its own for each element, small enough for exact sums.
std::vector<std::complex<float>> numbers(int count) {
  std::vector<std::complex<float>> x;
  for (int i = 0; i < count; ++i) x.emplace_back(static_cast<float>(i % 7 - 3), static_cast<float>(i % 5 - 2));
  return x;
}

/// The real form's result, element by element from its definition, is the complex one's.
void test_real_forms() {
  constexpr int m = 3, n = 4, k = 5, pitch = 8;
  const auto a = numbers(pitch * pitch), b = numbers(pitch * pitch);
  for (int bits = 0; bits < 16; ++bits) {
    Problem p;
    p.m = m, p.n = n, p.k = k;
    p.dtype = p.out_dtype = p.c_dtype = DType::kC64;
    p.conjugates_a = (bits & 1) != 0, p.conjugates_b = (bits & 2) != 0;
    p.a.row_stride = p.b.row_stride = p.d.row_stride = pitch;
    p.a.col_stride = p.b.col_stride = p.d.col_stride = 1;
    if (bits & 4) std::swap(p.a.row_stride, p.a.col_stride);
    if (bits & 8) std::swap(p.b.row_stride, p.b.col_stride);
    const Problem q = real_form(p);
    CHECK(q.m == m && q.n == 2 * n && q.k == 2 * k && q.dtype == DType::kF32 && q.d.row_stride == 2 * pitch);
    CHECK(q.a_major() == p.a_major() && q.b_major() == p.b_major());
    const auto* const a_parts = reinterpret_cast<const float*>(a.data());
    const auto* const b_parts = reinterpret_cast<const float*>(b.data());
    const uint32_t flips = real_form_flips(q);
    for (int row = 0; row < m; ++row) {
      for (int col = 0; col < 2 * n; ++col) {
        std::complex<float> sum = 0;
        float part = 0;
        for (int i = 0; i < 2 * k; ++i) {
          const float x = a_parts[row * q.a.row_stride + (i - i % 2) * q.a.col_stride + i % 2];
          const float y = b_parts[(i - i % 2) * q.b.row_stride + (col - col % 2) * q.b.col_stride + (i % 2 ^ col % 2)];
          part += (flips >> (col % 2 * 2 + i % 2) & 1) != 0 ? -x * y : x * y;
          if (i % 2 != 0) continue;
          const auto u = a[static_cast<size_t>(row * p.a.row_stride + i / 2 * p.a.col_stride)];
          const auto v = b[static_cast<size_t>(i / 2 * p.b.row_stride + col / 2 * p.b.col_stride)];
          sum += (p.conjugates_a ? std::conj(u) : u) * (p.conjugates_b ? std::conj(v) : v);
        }
        CHECK(part == (col % 2 == 0 ? sum.real() : sum.imag()));
      }
    }
  }
  CHECK(!real_form(nt_problem(8, 8, 8)).is_real_form && real_form_flips(nt_problem(8, 8, 8)) == 0);
}

void test_contenders_depend_on_the_chip_and_on_the_mode() {
  Problem p = nt_problem(4096, 4096, 4096);
  for (int cc : {80, 90}) {
    const DeviceFacts facts = facts_of(cc);
    const Question question(p, facts);
    Contenders contenders;
    find_contenders(question, &contenders);
    CHECK(has_family(contenders, Family::kSm80Mma));
    CHECK(has_family(contenders, Family::kSm90Wgmma) == (cc == 90));
    CHECK(!has_family(contenders, Family::kSkinny));  // no short side
    for (const Contender& c : contenders) CHECK(c.product_us > 0 && c.epilogue_us == 0 && c.runs_as_timed);
  }
  const DeviceFacts facts = facts_of(90);
  p.numerics = NumericsMode::kBatchInvariant;
  const Question question(p, facts);
  Contenders contenders;
  find_contenders(question, &contenders);
  CHECK(contenders.count > 0);
  for (const Contender& c : contenders) CHECK(variant(c.id).sums == Sums::kInOrder);
}

void test_reasons_against_a_variant() {
  const Problem p = nt_problem(4096, 4096, 4096);
  std::string why;
  const int id = find_variant("gemv_m1");
  CHECK(id >= 0 && !can_run(variant(id), p, facts_of(90), &why));
  CHECK(why.find("must be at most 1") != std::string::npos);
  why.clear();
  CHECK(can_run(variant(id), nt_problem(1, 4096, 4096), facts_of(90), &why) && why.empty());
}

void test_estimates_without_a_table_are_predictions() {
  const Problem p = nt_problem(300, 4096, 4096);
  for (int cc : {80, 90}) {  // only the second has a learned model
    const DeviceFacts facts = facts_of(cc);
    const Question question(p, facts);
    Contenders contenders;
    find_contenders(question, &contenders);
    Estimates estimates;
    estimate(question, contenders, /*for_explanation=*/false, &estimates);
    CHECK(!estimates.knows_anything());
    CHECK(estimates.torch.used == estimates.torch.predicted && std::isnan(estimates.torch.measured));
    CHECK((estimates.model_margin == kAnalyticMargin) == (cc == 80));
    bool any_corrected = false;
    for (int i = 0; i < contenders.count; ++i) {
      any_corrected = any_corrected || estimates.ours[i].used != contenders.all[i].product_us;
    }
    CHECK(any_corrected == (cc == 90));
  }
}

/// The doubt of the learned model raises the margin only where a kernel beats torch by the margin without it: elsewhere
/// torch is chosen in any case.
void test_doubt_counts_where_it_can_change_the_choice() {
  const DeviceFacts facts = facts_of(90);
  int doubted = 0, left_out = 0;
  for (int64_t m = 100; m < 4000; m += 100) {
    const Problem p = nt_problem(m, 1024, 1024);
    const Question question(p, facts);
    Contenders contenders;
    find_contenders(question, &contenders);
    Estimates estimates;
    estimate(question, contenders, /*for_explanation=*/false, &estimates);
    double best = INFINITY;
    for (int i = 0; i < contenders.count; ++i) best = std::fmin(best, estimates.ours[i].used);
    constexpr double kUndoubted = 1.02;
    CHECK(estimates.model_margin >= kUndoubted);
    if (best * kUndoubted < estimates.torch.used) {
      doubted += estimates.model_margin > kUndoubted;
    } else {
      CHECK(estimates.model_margin == kUndoubted);
      CHECK(select(p, facts, kAuto).variant == kTorch);
      ++left_out;
    }
  }
  CHECK(doubted > 0 && left_out > 0);
}

void test_measured_times_come_first() {
  const Problem p = nt_problem(304, 4096, 4096);
  const DeviceFacts facts = facts_of(80);
  TableEntry entry;
  CHECK(entry_of(p, facts, &entry));
  const Question question(p, facts);
  Contenders contenders;
  find_contenders(question, &contenders);
  entry.timings = {{kTorch, 50.0}, {contenders.all[0].id, 40.0}};
  add_to_table(entry);
  Estimates estimates;
  estimate(question, contenders, /*for_explanation=*/false, &estimates);
  CHECK(estimates.is_measured() && estimates.torch.used == 50.0 && estimates.ours[0].used == 40.0);
  CHECK(std::isnan(estimates.ours[1].used));
  CHECK(select(p, facts, kAuto).variant == contenders.all[0].id);
  set_table({});
}

/// A decision between torch, which takes 100 us, and one contender, which takes `us`.
struct Duel {
  Duel(const Problem& p, const DeviceFacts& facts, double us, Knowledge::Kind known) : question(p, facts) {
    contenders.all[contenders.count++] = {automatic_variants().front(), us, 0, true};
    estimates.known.kind = known;
    estimates.torch = {100, 100, 100};
    estimates.ours[0] = {us, us, us};
  }
  double margin() const { return margin_of(question, contenders, estimates); }
  Decision verdict() const { return verdict_on(question, contenders, estimates, margin()); }

  Question question;
  Contenders contenders;
  Estimates estimates;
};

void test_margins() {
  constexpr auto kExact = Knowledge::Kind::kExact, kNothing = Knowledge::Kind::kNothing;
  const DeviceFacts facts = facts_of(90);
  Problem p = nt_problem(4096, 4096, 4096);
  CHECK(Duel(p, facts, 90, kExact).margin() == 1.01);
  CHECK(Duel(p, facts, 90, kNothing).margin() == kAnalyticMargin);
  p.act = Activation::kGelu;
  CHECK(Duel(p, facts, 90, kExact).margin() == 1.04);
  CHECK(Duel(p, facts, 90, kNothing).margin() == 1.10);
  p.m = 16;  // few rows: the epilogue takes next to no time
  CHECK(Duel(p, facts, 90, kExact).margin() == 1.01);
  p.act = Activation::kNone;
  p.bias = &p;  // a bias is free for torch and for our kernels
  p.m = 4096;
  CHECK(Duel(p, facts, 90, kExact).margin() == 1.01);
}

void test_verdicts() {
  constexpr auto kExact = Knowledge::Kind::kExact, kNothing = Knowledge::Kind::kNothing;
  Problem p = nt_problem(4096, 4096, 4096);
  const DeviceFacts h200 = facts_of(90), a100 = facts_of(80);
  const Decision faster = Duel(p, h200, 98.9, kExact).verdict();
  CHECK(faster.variant >= 0 && faster.source == Source::kTable);
  CHECK(faster.us == 98.9f && faster.torch_us == 100.0f);
  const Decision level = Duel(p, h200, 99.5, kExact).verdict();
  CHECK(level.variant == kTorch && level.us == 100.0f);
  CHECK(Duel(p, h200, 90, kNothing).verdict().source == Source::kModel);

  // An A100 has no measured times: torch computes an aligned matmul, however fast a kernel is predicted to be.
  const Decision unknown = Duel(p, a100, 50, kNothing).verdict();
  CHECK(unknown.variant == kTorch && unknown.remark == Remark::kUnmeasuredChip);
  CHECK(Duel(p, a100, 50, kExact).verdict().variant >= 0);
  Problem ragged = p;
  ragged.a.row_stride = 4097;
  CHECK(Duel(ragged, a100, 50, kNothing).verdict().variant >= 0);

  // A batch-invariant kernel runs however slow it is. Without one the problem is refused.
  p.numerics = NumericsMode::kBatchInvariant;
  CHECK(Duel(p, h200, 500, kNothing).verdict().variant >= 0);
  Duel nobody(p, h200, NAN, kNothing);
  nobody.contenders.count = 0;
  CHECK(nobody.verdict().variant == kRefused);
}

/// A decision is kept for every alpha and beta, so neither may count in it.
void test_no_kernel_asks_for_alpha() {
  const DeviceFacts facts = facts_of(90);
  for (const auto& [m, n, k, batch] : {std::array<int64_t, 4>{127, 127, 127, 1024},
                                       {63, 63, 63, 10000},
                                       {64, 64, 64, 512},
                                       {4096, 4096, 4096, 1},
                                       {8, 4096, 4096, 1},
                                       {1, 1024, 128, 64},
                                       {5, 5, 5, 5000}}) {
    Problem one = nt_problem(m, n, k);
    one.batch[1] = batch;
    one.a.batch_stride[1] = m * k, one.b.batch_stride[1] = n * k, one.d.batch_stride[1] = m * n;
    for (const DType dtype : {DType::kF16, DType::kF32}) {
      one.dtype = one.out_dtype = dtype;
      Problem other = one;
      other.alpha = 0.125;
      for (int id = 0; id < variant_count(); ++id) {
        std::string why;
        const bool runs = can_run(variant(id), one, facts, &why);
        CHECK(runs == can_run(variant(id), other, facts, &why));
        CHECK(!runs || variant(id).predict_us(one, facts) == variant(id).predict_us(other, facts));
      }
      const Decision first = select(one, facts, kAuto), second = select(other, facts, kAuto);
      CHECK(first.variant == second.variant);
    }
  }
}

/// Where float64 is slow, no kernel for its tensor cores runs.
void test_slow_float64_leaves_float32_to_others() {
  Problem p = nt_problem(64, 64, 65536);
  p.dtype = p.out_dtype = DType::kF32;
  DeviceFacts facts = facts_of(90);
  CHECK(variant(select(p, facts, kAuto).variant).family == Family::kSm90Dmma);
  facts.slow_float64 = true;
  for (int id = 0; id < variant_count(); ++id) {
    std::string why;
    CHECK(variant(id).family != Family::kSm90Dmma || !can_run(variant(id), p, facts, &why));
  }
}

/// The learned model's trees were fitted to these codes.
void test_the_learned_models_codes_never_change() {
  CHECK(learned_code(Family::kAdded) == 0);
  CHECK(learned_code(Family::kSm80Mma) == 1);
  CHECK(learned_code(Family::kSm90Wgmma) == 2);
  CHECK(learned_code(Family::kSkinny) == 3);
  CHECK(learned_code(Family::kSm90Skinny) == 3);
  CHECK(learned_code(Family::kGemv) == 5);
  CHECK(learned_code(Family::kBatchedMma) == 6);
  CHECK(learned_code(Family::kSm90Split) == 7);
  CHECK(learned_code(Family::kSimtSkinny) == 8);
  CHECK(learned_code(Family::kSm80Split) == 9);
  CHECK(learned_code(Family::kSimtGemv) == 10);
  CHECK(learned_code(Family::kTinyBatch) == 11);
  CHECK(learned_code(Family::kInt8) == 12);
  CHECK(learned_code(Family::kSm90SplitSkinny) == 13);
  CHECK(learned_code(Family::kSm90Dmma) == 14);
  CHECK(learned_code(Family::kBatchedGemv) == 15);
}

/// What a forest was not fitted to keeps its analytic prediction.
void test_forests_correct_the_families_they_were_fitted_to() {
  for (const ForestKind kind : {ForestKind::kHalf, ForestKind::kHalfBatches}) {
    CHECK(is_learned(Family::kSm90Wgmma, kind) && is_learned(Family::kSm80Mma, kind));
    CHECK(is_learned(Family::kBatchedGemv, kind) && !is_learned(Family::kSm90Dmma, kind));
  }
  CHECK(!is_learned(Family::kTinyBatch, ForestKind::kHalf));
  CHECK(is_learned(Family::kTinyBatch, ForestKind::kHalfBatches));
  DeviceFacts facts;
  CHECK(preset_facts(90, &facts));
  const uint32_t families = learned(facts, ForestKind::kFloat32)->families;
  for (const Family family : {Family::kSm90Dmma, Family::kSimtSkinny, Family::kSimtGemv, Family::kTinyBatch}) {
    CHECK(is_learned(family, ForestKind::kFloat32));
    CHECK((families >> learned_code(family) & 1) == 1);
  }
  for (const Family family : {Family::kSm90Split, Family::kSm90SplitSkinny}) {  // of data measured with "split"
    CHECK(is_learned(family, ForestKind::kFloat32) && !is_learned(family, ForestKind::kFloat64));
  }
  for (const Family family : {Family::kSm90Dmma, Family::kTinyBatch}) {
    CHECK(is_learned(family, ForestKind::kFloat64));
  }
  for (const Family family : {Family::kAdded, Family::kSm80Mma, Family::kSm90Wgmma, Family::kInt8}) {
    CHECK(!is_learned(family, ForestKind::kFloat32) && !is_learned(family, ForestKind::kNone));
  }
}

/// Counts `kinds` calls of different sizes.
void count(int64_t kinds) {
  const Decision torchs;
  for (int64_t m = 1; m <= kinds; ++m) {
    const Problem p = nt_problem(m, 8, 8);
    CounterPlace place;
    count_call({.problem = p, .ordinal = 0, .cc = 90, .decision = torchs, .left = HGEMM_LEFT_ALPHA, .site = 0}, &place);
  }
}

/// The memory that starting and stopping a tally asks for, which calls were counted before, and while it is started
/// none.
size_t asked_for_by_a_tally() {
  const size_t before = asked_for;
  Tally tally;
  tally.start();
  tally.stop();
  return asked_for - before;
}

/// Facts choose the forests, not names: of the chips with forests, the one whose memory's bandwidth is nearest.
void test_the_forests_are_those_of_the_nearest_chip() {
  const auto hopper = [](int sm_count, int64_t l2_bytes, int64_t dram_gbs) {
    DeviceFacts facts;
    CHECK(preset_facts(90, &facts));
    facts.sm_count = sm_count, facts.l2_bytes = l2_bytes, facts.dram_gbs = dram_gbs;
    return learned(facts, ForestKind::kHalf);
  };
  constexpr int64_t kMiB = 1 << 20;
  const Learned* const h200 = hopper(132, 60 * kMiB, 4916);
  const Learned* const h100 = hopper(132, 50 * kMiB, 3352);
  CHECK(h200 != nullptr && h100 != nullptr && h200 != h100);
  CHECK(hopper(132, 60 * kMiB, 4800) == h200);  // what another driver says
  CHECK(hopper(132, 60 * kMiB, 0) == h200);     // unknown: the chip that core/chip.cc has
  CHECK(hopper(132, 60 * kMiB, 4900) == h200);  // GH200, 144 GB
  CHECK(hopper(114, 50 * kMiB, 2039) == h100);  // H100 PCIe
  CHECK(hopper(132, 60 * kMiB, 3938) == h100);  // H100 NVL
  CHECK(hopper(132, 60 * kMiB, 4022) == h100);  // GH200, 96 GB
  CHECK(hopper(78, 60 * kMiB, 4022) == h100);   // H20
  CHECK(hopper(66, 25 * kMiB, 4916) == h200);   // a stream with half of the SMs
  DeviceFacts facts;
  CHECK(preset_facts(90, &facts));
  CHECK(learned(facts, ForestKind::kHalf) == h200 && learned(facts, ForestKind::kNone) == nullptr);
  const Learned* const float32 = learned(facts, ForestKind::kFloat32);
  const Learned* const batches = learned(facts, ForestKind::kHalfBatches);
  CHECK(float32 != nullptr && float32 != h200 && float32 != h100);
  CHECK(batches != nullptr && batches != h200 && batches != h100 && batches != float32);
  const Learned* const float64 = learned(facts, ForestKind::kFloat64);
  CHECK(float64 != nullptr && float64 != float32);
  DeviceFacts slow = facts;
  slow.slow_float64 = true;
  CHECK(learned(slow, ForestKind::kFloat64) == nullptr && learned(slow, ForestKind::kFloat32) == float32);
  facts.dram_gbs = 3352;
  CHECK(learned(facts, ForestKind::kHalf) == h100 && learned(facts, ForestKind::kFloat32) == float32);
  CHECK(learned(facts, ForestKind::kHalfBatches) == batches);
  CHECK(preset_facts(80, &facts));
  for (const ForestKind kind :
       {ForestKind::kHalf, ForestKind::kHalfBatches, ForestKind::kFloat32, ForestKind::kFloat64}) {
    CHECK(learned(facts, kind) == nullptr);
  }
}

/// Which forests a product is asked of.
void test_kinds_of_products_have_forests_of_their_own() {
  const auto kind_of = [](DType dtype, int64_t batch, int64_t m, int64_t n, int64_t k) {
    Problem p;
    p.dtype = dtype, p.m = m, p.n = n, p.k = k, p.batch[1] = batch;
    return forest_kind(p);
  };
  CHECK(kind_of(DType::kBF16, 1, 64, 64, 64) == ForestKind::kHalf);
  CHECK(kind_of(DType::kF16, 2, 64, 1, 64) == ForestKind::kHalfBatches);
  CHECK(kind_of(DType::kF32, 5, 64, 64, 64) == ForestKind::kFloat32);
  CHECK(kind_of(DType::kF32, 5, 64, 1, 64) == ForestKind::kNone);  // vectors
  CHECK(kind_of(DType::kF64, 1, 64, 64, 64) == ForestKind::kFloat64);
  CHECK(kind_of(DType::kF64, 5, 1, 64, 64) == ForestKind::kNone);
  CHECK(kind_of(DType::kC64, 1, 64, 64, 64) == ForestKind::kNone &&
        kind_of(DType::kI8, 1, 64, 64, 64) == ForestKind::kNone);
}

void test_a_tally_costs_the_same_whatever_was_counted() {
  const size_t fresh = asked_for_by_a_tally();
  Tally before, around;
  around.start();
  before.start();
  count(20000);
  before.stop();
  CHECK(asked_for_by_a_tally() <= fresh + 64);  // around one that is started
  around.stop();
  CHECK(asked_for_by_a_tally() <= fresh);
  CHECK(before.rows(false, nullptr, 0) == 20000 && around.rows(false, nullptr, 0) == 20000);
}

void test_counters_are_small_and_go_with_their_tally() {
  const size_t before = in_use;
  {
    Tally tally;
    tally.start();
    count(60000);
    CHECK((in_use - before) / 60000 <= 120);
    tally.stop();
    count(10);  // for nobody
  }
  CHECK(in_use - before < 1024);
}

/// A contiguous (rows, cols) matrix of float16.
struct Operand {
  Operand(int64_t rows, int64_t cols) : sizes{rows, cols}, strides{cols, 1} {}
  TensorView view() const {
    return {.data = reinterpret_cast<const void*>(uintptr_t{256}),
            .ndim = 2,
            .sizes = sizes,
            .strides = strides,
            .dtype = DType::kF16};
  }

  int64_t sizes[2], strides[2];
};

Request request_of(Op op, const Operand& a, const Operand& b) {
  Request request;
  request.operands.op = op;
  request.operands.a = a.view();
  request.operands.b = b.view();
  return request;
}

/// A batch of few rows and many matrices with one B, as F.linear makes it of a permuted input. Where no kernel is
/// named, rows and batch are exchanged. A named kernel gets the matrices of the call.
void test_a_named_kernel_gets_the_matrices_of_the_call() {
  const int64_t a_sizes[] = {512, 16, 1024}, a_strides[] = {1024, 512 * 1024, 1};
  const int64_t b_sizes[] = {512, 1024, 4096}, b_strides[] = {0, 1, 1024};
  const auto view = [](const int64_t* sizes, const int64_t* strides) {
    return TensorView{.data = reinterpret_cast<const void*>(uintptr_t{256}),
                      .ndim = 3,
                      .sizes = sizes,
                      .strides = strides,
                      .dtype = DType::kF16};
  };
  Request request;
  request.operands.op = Op::kBmm;
  request.operands.a = view(a_sizes, a_strides);
  request.operands.b = view(b_sizes, b_strides);
  Plan chosen;
  CHECK(make_plan(request, &chosen) == Outcome::kOurs);
  const Problem& p = chosen.canonical.problem;
  CHECK(p.rows_are_batch && p.m == 512 && p.batches() == 16 && p.d.row_stride == 16 * 4096);
  request.variant = find_variant("skinny_wgmma_64x16");
  Plan named;
  CHECK(make_plan(request, &named) == Outcome::kOurs && named.job.variant == request.variant);
  const Problem& q = named.job.problem;
  CHECK(!q.rows_are_batch && q.m == 16 && q.batches() == 512 && q.a.row_stride == 512 * 1024);
  CHECK(q.d.row_stride == 4096 && q.d.batch_stride[1] == 16 * 4096);
}

void test_plans() {
  const Operand a(16, 4096), b(4096, 4096), wrong(4095, 4096);
  Request request = request_of(Op::kMm, a, b);
  Plan ours;
  CHECK(make_plan(request, &ours) == Outcome::kOurs && ours.outcome == Outcome::kOurs);
  CHECK(ours.job.variant >= 0 && ours.job.facts.cc == 90 && ours.message.empty());
  CHECK(ours.canonical.out_ndim == 2 && ours.canonical.out_sizes[0] == 16 && ours.canonical.out_sizes[1] == 4096);
  CHECK(!ours.canonical.copy_a.needed && !ours.canonical.copy_b.needed);
  CHECK(ours.workspace == static_cast<int64_t>(variant(ours.job.variant).workspace(ours.job.problem, ours.job.facts)));

  request.variant = kTorch;
  Plan torchs;
  CHECK(make_plan(request, &torchs) == Outcome::kTorch);

  Plan invalid;
  CHECK(make_plan(request_of(Op::kMm, a, wrong), &invalid) == Outcome::kInvalid);
  CHECK(invalid.message.find("(4095, 4096)") != std::string::npos);

  request.variant = find_variant("gemv_m1");
  Plan refused;
  CHECK(make_plan(request, &refused) == Outcome::kRefused);
  CHECK(refused.message.find("gemv_m1 does not support") != std::string::npos);

  request.ordinal = 1;
  Plan without_device;
  CHECK(make_plan(request, &without_device) == Outcome::kRefused);
  CHECK(without_device.message == "hgemm: gemv_m1 cannot run on cuda:1: it is not there");
  request.variant = kAuto;
  Plan left;
  CHECK(make_plan(request, &left) == Outcome::kTorch);
}

/// A kernel takes each of these calls. No kernel does where the call, the context or the default names torch.
void test_torch_can_be_named_for_every_dtype() {
  const auto settings_of = [](int variant) { return HgemmSettings{variant, kAuto, kAuto, 0, 0}; };
  for (const DType dtype :
       {DType::kF16, DType::kBF16, DType::kF32, DType::kF64, DType::kC64, DType::kC128, DType::kI8}) {
    const int64_t size = dtype == DType::kI8 ? 256 : 8, sizes[] = {4000, size, size}, strides[] = {64, size, 1};
    const int first = dtype == DType::kI8;  // int8 matmuls have no batch
    const TensorView matrix{.data = reinterpret_cast<const void*>(uintptr_t{256}),
                            .ndim = 3 - first,
                            .sizes = sizes + first,
                            .strides = strides + first,
                            .dtype = dtype};
    Request request;
    request.operands.op = dtype == DType::kI8 ? Op::kMm : Op::kBmm;
    request.operands.a = request.operands.b = matrix;
    request.operands.out_dtype = dtype == DType::kI8 ? DType::kI32 : dtype;
    const auto outcome = [&request] {
      Plan plan;
      return make_plan(request, &plan);
    };
    CHECK(outcome() == (dtype == DType::kC128 ? Outcome::kTorch : Outcome::kOurs));
    detail::thread_settings = settings_of(kTorch);
    CHECK(outcome() == Outcome::kTorch);
    detail::thread_settings = settings_of(kAuto);
    set_default_variant(kTorch);
    CHECK(outcome() == Outcome::kTorch);
    set_default_variant(kAuto);
    request.variant = kTorch;
    CHECK(outcome() == Outcome::kTorch);
    detail::thread_settings = kNoSettings;
  }
}

void test_an_out_that_is_not_resized_must_have_the_results_shape() {
  const Operand a(16, 4096), b(4096, 4096), wrong(16, 4095), right(16, 4096);
  Request request = request_of(Op::kMm, a, b);
  request.numerics = static_cast<int>(NumericsMode::kBatchInvariantOrRaise);
  const TensorView wrong_out = wrong.view(), right_out = right.view();
  request.fixed_out = &wrong_out;
  Plan through_new_memory;
  CHECK(make_plan(request, &through_new_memory) == Outcome::kInvalid);
  CHECK(through_new_memory.message == "hgemm::mm: out (16, 4095) must have the result's shape (16, 4096)");
  request.out = &wrong_out;
  Plan direct;
  CHECK(make_plan(request, &direct) == Outcome::kInvalid);
  request.fixed_out = request.out = &right_out;
  Plan ours;
  CHECK(make_plan(request, &ours) == Outcome::kOurs);
}

void test_a_float32_mode_means_nothing_for_a_dtype_without_a_name() {
  const Operand a(64, 64), b(64, 64);
  Request request = request_of(Op::kMm, a, b);
  request.operands.a.dtype = request.operands.b.dtype = request.operands.out_dtype = DType::kF32;
  request.float32 = static_cast<int>(Float32Mode::kSplit);
  request.numerics = static_cast<int>(NumericsMode::kBatchInvariant);
  request.has_known_dtype = false;  // csrc/torch uses float32 as the placeholder for such dtypes
  Plan torchs;
  CHECK(make_plan(request, &torchs) == Outcome::kTorch);
  request.numerics = static_cast<int>(NumericsMode::kBatchInvariantOrRaise);
  Plan refused;
  CHECK(make_plan(request, &refused) == Outcome::kRefused);
}

void test_a_plan_says_which_operand_needs_a_copy() {
  Operand a(512, 4097), b(4097, 512);
  a.strides[0] = 2 * 4097;
  a.strides[1] = 2;
  Plan plan;
  CHECK(make_plan(request_of(Op::kMm, a, b), &plan) == Outcome::kOurs);
  CHECK(plan.canonical.copy_a.needed && !plan.canonical.copy_b.needed);
  CHECK(plan.canonical.copy_a.ndim == 2 && plan.canonical.copy_a.strides[1] == 2);
  CHECK(plan.job.problem.a.data == nullptr && plan.job.problem.a.row_stride == 4097);
}

void test_empty_results_are_torchs_even_where_a_kernel_is_named() {
  const Operand a(0, 64), b(64, 64);
  Request request = request_of(Op::kMm, a, b);
  request.variant = find_variant("gemv_m1");
  Plan plan;
  CHECK(make_plan(request, &plan) == Outcome::kTorch && plan.canonical.empty());
}

void test_gated_plans_decide_on_the_product() {
  const Operand x(16, 4096), weight(8192, 4096);
  Request request = request_of(Op::kLinearGated, x, weight);
  request.operands.act = Activation::kSilu;
  Plan plan;
  CHECK(make_plan(request, &plan) == Outcome::kOurs);
  const Problem& p = plan.canonical.problem;
  CHECK(p.gated == plan.gates && p.act == (plan.gates ? Activation::kSilu : Activation::kNone));
  CHECK(plan.canonical.out_sizes[1] == 8192 && p.d.row_stride == (plan.gates ? 4096 : 8192));
}

/// A random problem of up to about 2^34 bytes of operands, in any layout, aligned or not.
Problem random_problem(std::mt19937_64& engine) {
  const auto below = [&engine](int64_t n) { return static_cast<int64_t>(engine() % static_cast<uint64_t>(n)); };
  const auto extent = [&below](double most) {
    const auto x = static_cast<int64_t>(std::exp(static_cast<double>(below(1000)) / 1000 * std::log(most)));
    return below(2) == 0 ? x + 1 : (x + 63) / 64 * 64;
  };
  Problem p;
  const bool is_float32 = below(2) == 0;
  p.dtype = p.out_dtype = p.c_dtype = is_float32 ? DType::kF32 : DType::kF16;
  p.float32 = is_float32 ? Float32Mode::kSplit : Float32Mode::kStrict;
  do {
    p.m = extent(2e6), p.n = extent(2e6), p.k = extent(2e6);
    p.batch[1] = below(3) == 0 ? extent(5000) : 1;
    p.batch[0] = below(6) == 0 ? extent(50) : 1;
  } while (static_cast<double>(p.m * p.k + p.k * p.n) * p.batches() > 4e9 || static_cast<double>(p.m) * p.n > 4e9);
  const auto operand = [&](Matrix* x, int64_t rows, int64_t cols) {
    const bool row_major = below(2) == 0;
    x->row_stride = row_major ? cols : 1;
    x->col_stride = row_major ? 1 : rows;
    x->batch_stride[1] = below(4) == 0 || p.batch[1] == 1 ? 0 : rows * cols;
    x->batch_stride[0] = below(4) == 0 || p.batch[0] == 1 ? 0 : rows * cols * p.batch[1];
    x->data = reinterpret_cast<void*>(uintptr_t{4096} + (below(4) == 0 ? 2u << below(3) : 0u));
  };
  operand(&p.a, p.m, p.k);
  operand(&p.b, p.k, p.n);
  p.d = {nullptr, p.n, 1, {p.m * p.n * p.batch[1], p.m * p.n}};
  p.b_is_vector = p.n == 1 && below(2) == 0;
  if (below(4) == 0) p.numerics = NumericsMode::kBatchInvariant;
  return p;
}

void test_no_kernel_wants_more_workspace_than_it_may_have() {
  std::mt19937_64 engine(7);
  int large = 0, of_less = 0;
  for (int i = 0; i < 4000; ++i) {
    Problem p = random_problem(engine);
    const DeviceFacts facts = facts_of(i % 2 == 0 ? 90 : 80);
    if (i % 4 == 0) p.most_workspace = int64_t{1} << (engine() % 28);
    for (int id = 0; id < variant_count(); ++id) {
      const Variant& v = variant(id);
      if (!can_run(v, p, facts, nullptr)) continue;
      const auto workspace = static_cast<int64_t>(v.workspace(p, facts));
      CHECK(workspace <= p.most_workspace);
      if (workspace > p.most_workspace)
        std::fprintf(stderr, "%s wants %lld\n", v.name, static_cast<long long>(workspace));
      const double us = v.predict_us(p, facts);
      CHECK(std::isfinite(us) && us > 0);
      large += workspace > kMostWorkspace / 2;
      of_less += p.most_workspace < kMostWorkspace && workspace > 0;
    }
  }
  CHECK(large > 1000 && of_less > 1000);
}

/// A half product always has a kernel that needs no workspace, so no promise depends on memory.
void test_half_products_can_do_without_workspace() {
  std::mt19937_64 engine(8);
  for (int i = 0; i < 1000; ++i) {
    Problem p = random_problem(engine);
    p.numerics = NumericsMode::kBatchInvariant;
    p.most_workspace = 0;
    const int chosen = select(p, facts_of(90), kAuto).variant;
    if (p.is_half()) CHECK(chosen >= 0 && variant(chosen).workspace(p, facts_of(90)) == 0);
    if (!p.is_half()) CHECK(chosen == kRefused);
  }
}

void test_plans_with_less() {
  const Operand a(65536, 4097), b(4097, 4097);
  Request request = request_of(Op::kMm, a, b);
  Plan plan;
  CHECK(make_plan(request, &plan) == Outcome::kOurs);
  CHECK(plan.workspace > kMostWorkspace / 2 && plan.workspace <= kMostWorkspace);
  Job job = plan.job;
  int64_t workspace = plan.workspace;
  CHECK(plan_with_less(&job, &workspace) == Outcome::kTorch);

  for (const NumericsMode numerics : {NumericsMode::kBatchInvariant, NumericsMode::kBatchInvariantOrRaise}) {
    request.numerics = static_cast<int>(numerics);
    Plan invariant;
    CHECK(make_plan(request, &invariant) == Outcome::kOurs && invariant.workspace > 0);
    job = invariant.job;
    workspace = invariant.workspace;
    int tries = 0;
    while (plan_with_less(&job, &workspace) == Outcome::kOurs) {
      CHECK(++tries < 10 && workspace <= invariant.workspace / 4);
      CHECK(variant(job.variant).sums == Sums::kInOrder);
      CHECK(workspace == static_cast<int64_t>(variant(job.variant).workspace(job.problem, job.facts)));
      if (workspace == 0) break;
    }
    CHECK(tries > 0 && workspace == 0);
    const bool raises = numerics == NumericsMode::kBatchInvariantOrRaise;
    CHECK(plan_with_less(&job, &workspace) == (raises ? Outcome::kRefused : Outcome::kTorch));
  }

  request.variant = find_variant("sm90_wgmma_pingpong_128x128x64_c1x1x1_pad");
  Plan named;
  CHECK(make_plan(request, &named) == Outcome::kOurs);
  job = named.job;
  workspace = named.workspace;
  Outcome outcome;
  int tries = 0;
  for (; (outcome = plan_with_less(&job, &workspace)) == Outcome::kOurs; ++tries) {
    CHECK(job.variant == request.variant && workspace > 0);
  }
  CHECK(outcome == Outcome::kRefused && tries > 1);
}

}  // namespace
}  // namespace hgemm

int main() {
  using namespace hgemm;
  test_alignments();
  test_contenders_depend_on_the_chip_and_on_the_mode();
  test_real_forms();
  test_reasons_against_a_variant();
  test_estimates_without_a_table_are_predictions();
  test_doubt_counts_where_it_can_change_the_choice();
  test_measured_times_come_first();
  test_margins();
  test_verdicts();
  test_the_learned_models_codes_never_change();
  test_forests_correct_the_families_they_were_fitted_to();
  test_no_kernel_asks_for_alpha();
  test_slow_float64_leaves_float32_to_others();
  test_the_forests_are_those_of_the_nearest_chip();
  test_kinds_of_products_have_forests_of_their_own();
  test_a_tally_costs_the_same_whatever_was_counted();
  test_counters_are_small_and_go_with_their_tally();
  test_plans();
  test_torch_can_be_named_for_every_dtype();
  test_an_out_that_is_not_resized_must_have_the_results_shape();
  test_a_float32_mode_means_nothing_for_a_dtype_without_a_name();
  test_a_plan_says_which_operand_needs_a_copy();
  test_empty_results_are_torchs_even_where_a_kernel_is_named();
  test_gated_plans_decide_on_the_product();
  test_no_kernel_wants_more_workspace_than_it_may_have();
  test_half_products_can_do_without_workspace();
  test_plans_with_less();
  test_a_named_kernel_gets_the_matrices_of_the_call();
  return failures == 0 ? 0 : 1;
}
