// Decides on many problems, one after the other and on several threads, and looks at what the caches of decisions give
// back, what they take, and what the heap is asked for. test_steps.py links it with the library's objects. With the
// argument "threads" it runs the test of many threads alone, as a program that is compiled with -fsanitize=thread.
#include <malloc.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "check.h"
#include "dispatch/choose.h"
#include "dispatch/context.h"
#include "dispatch/decision_cache.h"
#include "dispatch/models/learned.h"
#include "dispatch/models/table.h"
#include "dispatch/registry.h"
#include "dispatch/select.h"
#include "one_device.h"

namespace {

std::atomic<size_t> allocations{0};
std::atomic<size_t> in_use{0};  // bytes

}  // namespace

void* operator new(size_t bytes) {
  void* const memory = std::malloc(bytes);
  if (memory == nullptr) std::abort();
  allocations.fetch_add(1, std::memory_order_relaxed);
  in_use.fetch_add(malloc_usable_size(memory), std::memory_order_relaxed);
  return memory;
}
void operator delete(void* memory) noexcept {
  in_use.fetch_sub(malloc_usable_size(memory), std::memory_order_relaxed);
  std::free(memory);
}
void operator delete(void* memory, size_t) noexcept {
  operator delete(memory);
}

namespace hgemm {
namespace {

const DeviceFacts& facts() {
  return chip_of(90).facts;
}

/// A matmul of contiguous matrices in any of the four layouts. Half of the sizes are multiples of 8.
Problem problem_of(uint64_t seed) {
  std::mt19937_64 engine(seed);
  const auto extent = [&engine](double most) {
    const auto x = static_cast<int64_t>(std::exp(static_cast<double>(engine() % 1000) / 1000 * std::log(most)));
    return engine() % 2 == 0 ? x + 1 : (x + 7) / 8 * 8;
  };
  Problem p;
  p.dtype = p.out_dtype = p.c_dtype = engine() % 2 == 0 ? DType::kF16 : DType::kBF16;
  p.m = extent(8192), p.n = extent(16384), p.k = extent(16384);
  const auto operand = [&](Matrix* x, int64_t rows, int64_t cols) {
    const bool row_major = engine() % 2 == 0;
    x->row_stride = row_major ? cols : 1;
    x->col_stride = row_major ? 1 : rows;
  };
  operand(&p.a, p.m, p.k);
  operand(&p.b, p.k, p.n);
  p.d.row_stride = p.n;
  p.d.col_stride = 1;
  if (engine() % 4 == 0) p.numerics = NumericsMode::kBatchInvariant;
  return p;
}

Decision choose(const Problem& p) {
  return hgemm::choose(p, facts(), /*ordinal=*/0, kAuto);
}

bool same(const Decision& x, const Decision& y) {
  return x.variant == y.variant && x.source == y.source && x.us == y.us && x.torch_us == y.torch_us;
}

/// The forests of both chips give, with this CPU's vector instructions, the numbers of plain C++, bit for bit.
void test_vectors_compute_what_plain_code_does(int64_t dram_gbs) {
  DeviceFacts chip = facts();
  chip.dram_gbs = dram_gbs;
  const Learned& model = *learned(chip, ForestKind::kHalf);
  std::mt19937 engine(3);
  for (int i = 0; i < 300; ++i) {
    float shared[kShapeFeatures];
    Rows rows{};
    const auto some = [&engine](const float* borders, int first, int last) {  // at, between and beyond the borders
      if (first == last || engine() % 16 == 0) return engine() % 2 == 0 ? NAN : -1e30f;
      const float border = borders[first + static_cast<int>(engine() % static_cast<unsigned>(last - first))];
      return engine() % 2 == 0 ? border : border + 0.01f;
    };
    const Forest& forest = model.kernels;
    for (int f = 0; f < kShapeFeatures; ++f) shared[f] = some(forest.border, forest.first[f], forest.first[f + 1]);
    for (int f = 0; f < kOwnFeatures; ++f) {
      const uint16_t* const first = forest.first + forest.shared + f;
      for (float& x : rows.feature[f]) x = some(forest.border, first[0], first[1]);
    }
    const int count = 1 + i % kRows;
    double fast[kRows], plain[kRows];
    factors_by(Vectors::kNone, forest, shared, rows, count, plain);
    for (Vectors vectors : {Vectors::kAvx2, Vectors::kVbmi}) {
      if (vectors > kVectors) continue;
      factors_by(vectors, forest, shared, rows, count, fast);
      for (int row = 0; row < count; ++row) CHECK(fast[row] == plain[row] && std::isfinite(plain[row]));
    }
  }
}

/// Logarithms by vector instructions are exact for powers of two, and elsewhere at most the next float.
void test_logarithms() {
  std::mt19937 engine(4);
  for (int i = 0; i < 10000; ++i) {
    double x[kLogs];
    float fast[kLogs], plain[kLogs];
    for (double& one : x) {
      const int exponent = static_cast<int>(engine() % 120) - 60;
      const double mantissa = engine() % 4 == 0 ? 1 : 1 + engine() / 4294967296.0;
      one = std::ldexp(engine() % 4 == 0 ? 1 + 1e-6 * mantissa : mantissa, engine() % 4 == 0 ? 0 : exponent);
    }
    log2_by(Vectors::kNone, x, kLogs, plain);
    log2_by(kVectors, x, kLogs, fast);
    for (int of = 0; of < kLogs; ++of) {
      int exponent;
      const bool is_power = std::frexp(x[of], &exponent) == 0.5;
      CHECK(fast[of] == plain[of] || (!is_power && std::nextafter(fast[of], plain[of]) == plain[of]));
      CHECK(std::fabs(static_cast<double>(plain[of]) - std::log2(x[of])) <= 1e-6 * std::fabs(plain[of]));
    }
  }
}

void test_a_decision_asks_for_no_memory() {
  select(problem_of(0), facts(), kAuto);
  const size_t before = allocations;
  for (uint64_t seed = 1; seed < 2000; ++seed) select(problem_of(seed), facts(), kAuto);
  CHECK(allocations == before);
  // The caches grow now and then: the process's has 64 shards, each of which doubles.
  choose(problem_of(0));
  const size_t of_caches = allocations;
  for (uint64_t seed = 1; seed < 2000; ++seed) choose(problem_of(seed));
  CHECK(allocations - of_caches <= 64 * 4);
  const size_t grown = allocations;
  for (uint64_t seed = 1; seed < 2000; ++seed) choose(problem_of(seed));
  CHECK(allocations == grown);
}

/// Far more problems than a thread's cache holds.
void test_a_cached_decision_is_the_decision() {
  for (int round = 0; round < 2; ++round) {
    for (uint64_t seed = 0; seed < 3000; ++seed) {
      const Problem p = problem_of(seed);
      CHECK(same(choose(p), select(p, facts(), kAuto)));
    }
  }
}

/// A kernel that runs the problem, and that the model does not choose.
int other_than(const Problem& p, int chosen) {
  for (int id : automatic_variants()) {
    const Variant& v = variant(id);
    if (id != chosen && v.min_cc == 90 && (v.dtypes & 1u) != 0 && v.eligible(p, facts(), nullptr)) return id;
  }
  return kTorch;
}

/// Tables that are loaded, and a shape that is tuned, change decisions on every thread.
void test_tables_and_tuning_invalidate() {
  Problem p = problem_of(11);
  p.numerics = NumericsMode::kFast;
  p.m = p.n = p.k = 512;
  p.a = {nullptr, 512, 1, {0, 0}};
  p.b = {nullptr, 1, 512, {0, 0}};
  p.d = {nullptr, 512, 1, {0, 0}};
  const int before = choose(p).variant, other = other_than(p, before);
  CHECK(other >= 0);
  TableEntry entry;
  CHECK(entry_of(p, facts(), &entry));
  std::atomic<int> step{0};
  std::thread thread([&] {
    CHECK(choose(p).variant == before);
    step = 1;
    while (step != 2) std::this_thread::yield();
    CHECK(choose(p).variant == other);
    step = 3;
    while (step != 4) std::this_thread::yield();
    CHECK(choose(p).variant == before);
  });
  while (step != 1) std::this_thread::yield();
  entry.timings = {{kTorch, 100.0}, {other, 1.0}};
  add_to_table(entry);  // as the tuner does
  CHECK(choose(p).variant == other && choose(p).source == Source::kTable);
  step = 2;
  while (step != 3) std::this_thread::yield();
  set_table({});
  CHECK(choose(p).variant == before);
  step = 4;
  thread.join();
}

/// What a context and a call ask for belongs to the key.
void test_settings_have_decisions_of_their_own() {
  Problem p = problem_of(21);
  p.numerics = NumericsMode::kFast;
  const int before = choose(p).variant;
  HgemmContext* const context =
      hgemm_context_new({.variant = kTorch, .numerics = kAuto, .float32 = kAuto, .tunes = 0, .reserved = 0});
  hgemm_context_enter(context);
  CHECK(choose(p).variant == kTorch && choose(p).source == Source::kForced);
  hgemm_context_exit(context);
  hgemm_context_delete(context);
  CHECK(choose(p).variant == before);
  p.numerics = NumericsMode::kBatchInvariant;
  CHECK(choose(p).variant >= 0 && variant(choose(p).variant).sums == Sums::kInOrder);
}

/// A key that differs from others in its number alone, and its fingerprint.
DecisionKey key_of(uint64_t number) {
  DecisionKey key;
  key.words[0] = number;
  key.words[1] = 4096;
  return key;
}
Fingerprint fingerprint_of(uint64_t number) {
  return Fingerprint(key_of(number));
}

/// Half as many decisions as a thread's cache has places overfill few of its sets.
void test_a_thread_keeps_decisions() {
  constexpr uint64_t kGeneration = 3, kCount = 512;
  std::thread([] {
    for (uint64_t i = 0; i < kCount; ++i) {
      CHECK(find_in_thread(key_of(i), kGeneration) == nullptr);
      const CachedDecision* const kept = keep_in_thread(key_of(i), kGeneration, {.variant = static_cast<int32_t>(i)});
      CHECK(find_in_thread(key_of(i), kGeneration) == kept && kept->decision.variant == static_cast<int32_t>(i));
      CHECK(find_in_thread(key_of(i), kGeneration + 1) == nullptr);
    }
    uint64_t found = 0;
    for (uint64_t i = 0; i < kCount; ++i) {
      const CachedDecision* const cached = find_in_thread(key_of(i), kGeneration);
      if (cached == nullptr) continue;
      ++found;
      CHECK(cached->decision.variant == static_cast<int32_t>(i));
    }
    CHECK(found > kCount * 9 / 10);
  }).join();
}

void test_a_million_shapes_in_bounded_memory() {
  constexpr uint64_t kGeneration = 1u << 30;
  constexpr uint64_t kMillion = 1000000;
  const size_t before = in_use;
  for (uint64_t i = 0; i < kMillion; ++i) {
    share(fingerprint_of(i), kGeneration, {.variant = static_cast<int32_t>(i)});
  }
  uint64_t found = 0;
  for (uint64_t i = 0; i < kMillion; ++i) {
    Decision decision;
    if (!find_shared(fingerprint_of(i), kGeneration, &decision)) continue;
    ++found;
    CHECK(decision.variant == static_cast<int32_t>(i));
  }
  CHECK(found == kMillion);
  CHECK((in_use - before) / kMillion <= 104);
  Decision none;
  CHECK(!find_shared(fingerprint_of(kMillion), kGeneration, &none));
  CHECK(!find_shared(fingerprint_of(0), kGeneration + 1, &none));

  // Shards that are full are cleared: what is added is found, and the memory does not grow any further.
  for (uint64_t i = kMillion; i < 3 * kMillion; ++i) {
    share(fingerprint_of(i), kGeneration, {.variant = static_cast<int32_t>(i)});
    CHECK(find_shared(fingerprint_of(i), kGeneration, &none) && none.variant == static_cast<int32_t>(i));
  }
  CHECK(in_use - before <= kMostDecisions * 48 * 4 / 3 + 4096);
}

/// Threads decide on the same problems while the table changes. Every decision is that of one of the two tables.
void test_many_threads() {
  constexpr int kThreads = 6, kProblems = 150, kRounds = 8;
  std::vector<Problem> problems;
  std::vector<Decision> expected;
  for (uint64_t seed = 0; seed < kProblems; ++seed) {
    problems.push_back(problem_of(seed));
    expected.push_back(select(problems.back(), facts(), kAuto));
  }
  std::atomic<int> running{kThreads};
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      std::mt19937 engine(static_cast<unsigned>(thread));
      for (int i = 0; i < kRounds * kProblems; ++i) {
        const size_t at = engine() % kProblems;
        CHECK(same(choose(problems[at]), expected[at]));
        share(fingerprint_of(engine() % 4096), 5, {.variant = kTorch});
      }
      --running;
    });
  }
  while (running > 0) {
    invalidate_decisions();
    std::this_thread::yield();
  }
  for (std::thread& thread : threads) thread.join();
}

/// A process that forks while other threads add to the cache has a child that decides.
void test_a_child_of_a_fork_decides() {
  std::atomic<bool> ends{false};
  std::vector<std::thread> threads;
  for (uint64_t thread = 0; thread < 3; ++thread) {
    threads.emplace_back([&ends, thread] {
      for (uint64_t i = thread; !ends; i += 3) share(fingerprint_of(i), 7, {.variant = kTorch});
    });
  }
  const Decision expected = select(problem_of(5), facts(), kAuto);
  for (int i = 0; i < 20; ++i) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(20);
      bool is_right = true;
      for (uint64_t seed = 100000; seed < 100200; ++seed) choose(problem_of(seed));
      is_right = same(choose(problem_of(5)), expected);
      _exit(is_right ? 0 : 1);
    }
    int status = -1;
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
  }
  ends = true;
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace hgemm

int main(int argc, char** argv) {
  using namespace hgemm;
  test_many_threads();
  if (argc > 1 && std::strcmp(argv[1], "threads") == 0) return failures == 0 ? 0 : 1;
  for (int64_t dram_gbs : {4916, 3352}) test_vectors_compute_what_plain_code_does(dram_gbs);  // H200, H100
  test_logarithms();
  test_a_decision_asks_for_no_memory();
  test_a_cached_decision_is_the_decision();
  test_tables_and_tuning_invalidate();
  test_settings_have_decisions_of_their_own();
  test_a_child_of_a_fork_decides();
  test_a_thread_keeps_decisions();
  test_a_million_shapes_in_bounded_memory();
  return failures == 0 ? 0 : 1;
}
