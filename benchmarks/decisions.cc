// What decisions on random shapes are, and what they cost the host. benchmarks/select_cost.py compiles this program and
// links it with the objects of a build. It needs no GPU: the devices are an H200, an H100 and an A100.
//
//   decisions TABLE choices COUNT    prints the decisions on COUNT random problems of every kind, a line each
//   decisions TABLE times COUNT      prints the nanoseconds of a decision, of COUNT on matmuls, by their steps
//
// TABLE has a line for each measured time: cc, SMs, bytes of L2, GB/s, dtype, layout of A and B, alignment, batch, M,
// N, K, kernel ("torch" or a name) and microseconds. The times of a shape follow one another.
#include <time.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "core/chip.h"
#include "dispatch/c_api.h"
#include "dispatch/canonical.h"
#include "dispatch/choose.h"
#include "dispatch/contenders.h"
#include "dispatch/estimates.h"
#include "dispatch/margin.h"
#include "dispatch/models/table.h"
#include "dispatch/plan.h"
#include "dispatch/registry.h"
#include "dispatch/select.h"
#include "dispatch/verdict.h"
#include "one_device.h"

namespace hgemm {

namespace {

DeviceFacts h100_facts() {
  DeviceFacts facts = chip_of(90).facts;
  facts.l2_bytes = 52428800;
  facts.dram_gbs = 3352;
  return facts;
}

class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}

  int64_t below(int64_t n) { return static_cast<int64_t>(engine_() % static_cast<uint64_t>(n)); }
  bool one_in(int64_t n) { return below(n) == 0; }

  /// An extent from 1 to `most`, evenly spread in its logarithm; often a multiple of 8 or of 64.
  int64_t extent(double most) {
    const auto x = static_cast<int64_t>(std::exp(static_cast<double>(below(100000)) / 100000 * std::log(most))) + 1;
    const int64_t grain = one_in(3) ? 1 : one_in(2) ? 8 : 64;
    return std::max<int64_t>(1, (x + grain - 1) / grain * grain);
  }

 private:
  std::mt19937_64 engine_;
};

/// A matmul of contiguous, aligned matrices, as a linear layer or a product of two activations has it. It is in half
/// precision until `dtype` is changed.
struct Matmul {
  int64_t m, n, k;
  DType dtype;
  bool a_row_major, b_row_major;
  int64_t a_sizes[2], a_strides[2], b_sizes[2], b_strides[2];

  explicit Matmul(Random& random) {
    do {
      m = random.extent(16384);
      n = random.extent(32768);
      k = random.extent(32768);
    } while (static_cast<double>(m) * n * k > 4e12);
    dtype = random.one_in(2) ? DType::kF16 : DType::kBF16;
    const int64_t layout = random.below(5);  // NT twice
    a_row_major = layout < 3;
    b_row_major = layout == 2 || layout == 3;
  }

  Operands operands() {
    const auto view = [this](int64_t rows, int64_t cols, bool row_major, int64_t* sizes, int64_t* strides) {
      sizes[0] = rows, sizes[1] = cols;
      strides[0] = row_major ? cols : 1, strides[1] = row_major ? 1 : rows;
      TensorView x;
      x.data = reinterpret_cast<const void*>(uintptr_t{256});
      x.ndim = 2;
      x.sizes = sizes;
      x.strides = strides;
      x.dtype = dtype;
      return x;
    };
    Operands o;
    o.op = Op::kMm;
    o.a = view(m, k, a_row_major, a_sizes, a_strides);
    o.b = view(k, n, b_row_major, b_sizes, b_strides);
    o.out_dtype = dtype;
    return o;
  }

  Request request() {
    Request r;
    r.operands = operands();
    return r;
  }

  Problem problem() {
    Canonical canonical;
    canonicalize(operands(), &canonical);
    return canonical.problem;
  }
};

/// A problem of any kind that a decision may depend on.
Problem any_problem(Random& random) {
  Problem p;
  const int64_t type = random.below(8);
  p.dtype = type < 4 ? DType::kF16 : type < 7 ? DType::kBF16 : DType::kF32;
  p.out_dtype = p.is_half() && random.one_in(12) ? DType::kF32 : p.dtype;
  p.c_dtype = p.out_dtype;
  if (p.dtype == DType::kF32) p.float32 = random.one_in(2) ? Float32Mode::kSplit : Float32Mode::kStrict;
  const bool is_batch = random.one_in(5), is_tiny = is_batch && random.one_in(3);
  do {
    p.m = random.extent(is_tiny ? 32 : is_batch ? 1024 : 32768);
    p.n = random.extent(is_tiny ? 32 : is_batch ? 1024 : 65536);
    p.k = random.extent(is_tiny ? 32 : is_batch ? 4096 : 65536);
    p.batch[1] = is_batch ? random.extent(is_tiny ? 10000 : 256) : 1;
    p.batch[0] = is_batch && random.one_in(4) ? random.extent(8) : 1;
  } while (static_cast<double>(p.m * p.k + p.k * p.n + p.m * p.n) * p.batches() > 4e10);
  const bool is_symmetric = random.one_in(20);
  if (is_symmetric) p.n = p.m;
  const auto operand = [&](Matrix* x, int64_t rows, int64_t cols) {
    const bool row_major = random.one_in(2);
    const int64_t pitch = (row_major ? cols : rows) + (random.one_in(8) ? random.extent(64) : 0);
    x->row_stride = row_major ? pitch : 1;
    x->col_stride = row_major ? 1 : pitch;
    x->batch_stride[1] = random.one_in(4) || p.batch[1] == 1 ? 0 : rows * cols;
    x->batch_stride[0] = p.batch[0] == 1 ? 0 : rows * cols * p.batch[1];
    x->data = reinterpret_cast<void*>(uintptr_t{4096} + (random.one_in(8) ? uint64_t{2} << random.below(3) : 0));
  };
  operand(&p.a, p.m, p.k);
  operand(&p.b, p.k, p.n);
  if (is_symmetric) {
    p.b = {p.a.data, p.a.col_stride, p.a.row_stride, {p.a.batch_stride[0], p.a.batch_stride[1]}};
    p.b_is_a_transposed = true;
  }
  p.d = {nullptr, p.n, 1, {p.m * p.n * p.batch[1], p.m * p.n}};
  const int64_t epilogue = random.below(10);
  if (epilogue == 0) p.c = p.d, p.c.data = p.a.data, p.beta = 1;
  if (epilogue == 1 || epilogue == 2) p.bias = p.a.data;
  if (epilogue == 2 || epilogue == 3) p.act = static_cast<Activation>(1 + random.below(4));
  if (epilogue == 3 && random.one_in(3)) p.pre_activation = p.a.data;
  if (random.one_in(4)) p.numerics = NumericsMode::kBatchInvariant;
  if (random.one_in(10)) p.most_workspace = int64_t{1} << random.below(28);
  return p;
}

void print_choices(int count) {
  const DeviceFacts devices[] = {chip_of(90).facts, h100_facts(), chip_of(80).facts};
  Random random(5);
  for (int i = 0; i < count; ++i) {
    Problem p;
    if (i % 2 == 0) {
      p = any_problem(random);
    } else {
      p = Matmul(random).problem();
    }
    const DeviceFacts& facts = devices[i % 7 == 6 ? 2 : i % 3 == 0];
    const Decision d = select(p, facts, kAuto);
    std::printf("%d %lldx%lldx%lldx%lld %s %s act %d numerics %d cc %d l2 %lld: %s %d %.6g %.6g %.6g %d %d %d\n", i,
                static_cast<long long>(p.batches()), static_cast<long long>(p.m), static_cast<long long>(p.n),
                static_cast<long long>(p.k), layout_name(p), dtype_name(p.dtype), static_cast<int>(p.act),
                static_cast<int>(p.numerics), facts.cc, static_cast<long long>(facts.l2_bytes >> 20),
                d.variant == kRefused ? "refused" : variant_name(d.variant), static_cast<int>(d.source),
                static_cast<double>(d.us), static_cast<double>(d.torch_us), static_cast<double>(d.margin),
                static_cast<int>(d.neighbours), static_cast<int>(d.measured_dtype), static_cast<int>(d.remark));
  }
}

/// Nanoseconds of the CPU that this process has taken.
double cpu_ns() {
  timespec now;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return 1e9 * static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec);
}

/// The mean nanoseconds of `body(i)`: the median of blocks of a thousand calls, as other processes disturb some.
double median_ns(int count, const std::function<void(int, int)>& body) {
  constexpr int kBlock = 1000;
  std::vector<double> blocks;
  for (int first = 0; first < count; first += kBlock) {
    const int last = std::min(count, first + kBlock);
    const double before = cpu_ns();
    body(first, last);
    blocks.push_back((cpu_ns() - before) / (last - first));
  }
  std::nth_element(blocks.begin(), blocks.begin() + static_cast<int64_t>(blocks.size() / 2), blocks.end());
  return blocks[blocks.size() / 2];
}

void report(const char* what, double value) {
  std::printf("%s %.1f\n", what, value);
}

long resident_kib() {
  std::ifstream status("/proc/self/status");
  std::string word;
  while (status >> word) {
    if (word == "VmRSS:") {
      long kib = 0;
      status >> kib;
      return kib;
    }
  }
  return 0;
}

void print_times(int count) {
  Random random(7);
  std::vector<Matmul> matmuls;
  std::vector<Problem> problems, float32_problems;
  for (int i = 0; i < count; ++i) {
    matmuls.emplace_back(random);
    problems.push_back(matmuls.back().problem());
    Matmul float32 = matmuls.back();
    float32.dtype = DType::kF32;
    float32_problems.push_back(float32.problem());
  }
  const DeviceFacts facts = chip_of(90).facts;
  volatile int keep = 0;
  select(problems[0], facts, kAuto);
  report("canonicalize", median_ns(count, [&](int first, int last) {
           for (int i = first; i < last; ++i) {
             Canonical canonical;
             keep = keep + canonicalize(matmuls[static_cast<size_t>(i)].operands(), &canonical);
           }
         }));
  const int stepped = std::min(count, 10000);
  report("contenders", median_ns(stepped, [&](int first, int last) {
           for (int i = first; i < last; ++i) {
             const Question question(problems[static_cast<size_t>(i)], facts);
             Contenders contenders;
             find_contenders(question, &contenders);
             keep = keep + contenders.count;
           }
         }));
  report("contenders and estimates", median_ns(stepped, [&](int first, int last) {
           for (int i = first; i < last; ++i) {
             const Question question(problems[static_cast<size_t>(i)], facts);
             Contenders contenders;
             find_contenders(question, &contenders);
             Estimates estimates;
             estimate(question, contenders, false, &estimates);
             keep = keep + contenders.count;
           }
         }));
  report("select", median_ns(stepped, [&](int first, int last) {
           for (int i = first; i < last; ++i) {
             keep = keep + select(problems[static_cast<size_t>(i)], facts, kAuto).variant;
           }
         }));
  report("select in float32", median_ns(stepped, [&](int first, int last) {
           for (int i = first; i < last; ++i) {
             keep = keep + select(float32_problems[static_cast<size_t>(i)], facts, kAuto).variant;
           }
         }));
  HgemmContext* const context = hgemm_context_new({-1, -1, -1, 0, 0});
  const auto enter = [&](const char* what) {
    const double ns = median_ns(20000, [&](int first, int last) {
      for (int i = first; i < last; ++i) {
        hgemm_context_enter(context);
        hgemm_context_exit(context);
      }
    });
    report(what, ns);
  };
  enter("context before");
  hgemm_context_enter(context);
  const auto plan_all = [&](int first, int last) {
    for (int i = first; i < last; ++i) {
      Plan plan;
      keep = keep + static_cast<int>(make_plan(matmuls[static_cast<size_t>(i)].request(), &plan));
    }
  };
  const long before = resident_kib();
  report("plan of a new shape", median_ns(count, plan_all));
  report("bytes for a shape", static_cast<double>(resident_kib() - before) * 1024 / count);
  report("plan of a known one among all", median_ns(count, plan_all));
  plan_all(0, 100);
  report("plan of one among 100", median_ns(100000, [&](int first, int last) {
           for (int i = first; i < last; i += 100) plan_all(0, 100);
         }));
  hgemm_context_exit(context);
  enter("context after");
  hgemm_context_delete(context);
}

int number_of(const std::string& kernel) {
  return find_variant(kernel.c_str());
}

void read_table(const char* path) {
  std::ifstream file(path);
  std::vector<TableEntry> entries;
  TableEntry e{};
  int dtype, a, b;
  std::string kernel;
  double us;
  while (file >> e.cc >> e.sm_count >> e.l2_bytes >> e.dram_gbs >> dtype >> a >> b >> e.align >> e.batch >> e.m >>
         e.n >> e.k >> kernel >> us) {
    e.dtype = static_cast<DType>(dtype);
    e.a_major = static_cast<Major>(a);
    e.b_major = static_cast<Major>(b);
    const auto is_same = [&](const TableEntry& x) {
      return x.l2_bytes == e.l2_bytes && x.dtype == e.dtype && x.a_major == e.a_major && x.b_major == e.b_major &&
             x.align == e.align && x.batch == e.batch && x.m == e.m && x.n == e.n && x.k == e.k;
    };
    if (entries.empty() || !is_same(entries.back())) entries.push_back(e);
    if (number_of(kernel) != kUnknownVariant) entries.back().timings.push_back({number_of(kernel), us});
  }
  set_table(entries);
}

}  // namespace
}  // namespace hgemm

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  hgemm::read_table(argv[1]);
  const int count = std::atoi(argv[3]);
  if (std::strcmp(argv[2], "choices") == 0) hgemm::print_choices(count);
  if (std::strcmp(argv[2], "times") == 0) hgemm::print_times(count);
  return 0;
}
