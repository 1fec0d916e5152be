// The variants of tiny_batch: which problems each one takes, and how long it is predicted to run. How a batch is cut
// into chunks is in config.h.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <tuple>

#include "core/chip.h"
#include "core/cost.h"
#include "core/problem.h"
#include "core/variant_list.h"
#include "core/wide_elements.h"
#include "kernels/tiny_batch/config.h"
#include "kernels/tiny_batch/list.h"
#include "kernels/variants.h"

namespace hgemm {
namespace {

using tiny_batch::Copy;
using tiny_batch::Layout;
using tiny_batch::Schedule;

/// A kernel of list.h as values.
struct Line {
  Tile tile;
  int smem_bytes;  // at most
  tiny_batch::Shape shape;
};

// Fitted to the measured times of an H100 (NOTES.md).
constexpr double kFixedUs = 2.0;      // start, first bytes, drain
constexpr double kStreamShare = 0.9;  // of the read bandwidth
constexpr double kOverlap = 2.5;  // how well memory and instructions hide each other; infinite: the longer hides all
constexpr double kIssued = 2.3;   // warp instructions that an SM issues in a clock
// What threads take, in instructions: for a tile, and for each k of it; more for each k where groups of elements of one
// operand, or of both, are not aligned.
constexpr double kTile = 200, kStepF32 = 3, kStepHalf = 11, kNarrowStepF32 = 3.5, kNarrowStepHalf = 5.5;
constexpr double kStepF64 = 20, kStepC64 = 60, kNarrowStepWide = 3.5;
// float64 and complex64 of more than 8 rows, columns or k take this much longer than the rest of the model says.
constexpr int64_t kFewWide = 8;
constexpr double kLargeWide = 1.3;
// Short batches of vectors of these types are left to torch: 1000 of 8x1x8 in complex64 ran at 0.84 of its speed.
constexpr int64_t kFewOfVector = 16, kFewVectors = 4000;
// So are 16-bit vectors of more k than this: 6360 of 1x16x161 ran at 0.85 of its speed, and 1833 of 1x29x243 at 0.64.
constexpr int64_t kLongOfVector = 128;
// For a whole product, for each multiplication of it, and for each element of A, B and D; more in halves.
constexpr double kWhole = 20, kFma = 1.35, kElement = 1, kHalfElement = 1.5;
// For a copy between global and shared memory: in a chunk that is one piece of memory, as it lies there or with
// padding, or in one that has runs of its own, and in single 16-bit elements.
constexpr double kFlatCopy = 16, kPaddedCopy = 35, kRunCopy = 14, kElementCopy = 62;
constexpr double kEpilogue = 80;  // for a result with a C, a bias or an activation
// The models of batched_mma are up to 30 % too high where that is ahead: of 16^3 and more in aligned halves, and of
// smaller ones in short batches. This much is added here instead, so that they compare.
constexpr double kBesideTensorCores = 1.35;
constexpr int64_t kManyFma = 4096, kFewForTensorCores = 4000;
// Keeps problems of was_slower() away from this family: predictions are off by less.
constexpr double kSlower = 2.0;
// Shorter batches were not timed: they are left to torch, unless that is expected to be far behind.
constexpr double kUntimed = 1.5, kLeastUs = 3.0;

Schedule schedule(const Problem& p, const DeviceFacts& facts, const Line& line) {
  return tiny_batch::schedule(p, facts, line.shape);
}

bool eligible(const Problem& p, const Line& line, Reason* why) {
  const auto m = static_cast<long long>(p.m), n = static_cast<long long>(p.n), k = static_cast<long long>(p.k);
  if (is_wide(p.dtype) && !takes_wide(p, why)) return false;
  if (line.shape.whole && !tiny_batch::fits(p, line.shape)) {
    return refuse(why, "M, N and K must be %d, got %lld, %lld and %lld", line.shape.tm, m, n, k);
  }
  if (!tiny_batch::fits(p, line.shape)) {
    return refuse(why, "M, N and K must be at most %d, got %lld, %lld and %lld", tiny_batch::kMostExtent, m, n, k);
  }
  if (p.batches() > INT32_MAX) {
    return refuse(why, "a batch must have at most 2^31 - 1 matrices, got %lld", static_cast<long long>(p.batches()));
  }
  return true;
}

/// What the threads that copy a matrix take.
double copying(const Layout& l, int element_bytes) {
  if (l.shared) return 0;
  const double bytes = static_cast<double>(l.matrix) * element_bytes;
  if (l.copy == Copy::kFlat) return kFlatCopy * bytes / 16;
  return (l.piece == 2 ? kElementCopy : l.copy == Copy::kPadded ? kPaddedCopy : kRunCopy) * bytes / l.piece;
}

/// What the threads that multiply take for a product.
double multiplying(const Problem& p, const Schedule& s, const Line& line) {
  const double k = static_cast<double>(p.k);
  if (line.shape.whole) return kWhole + kFma * k * k * k + 3 * k * k * (kElement + (p.is_half() ? kHalfElement : 0));
  const int narrow = !s.a.wide + !s.b.wide;
  if (is_wide(p.dtype)) {
    const double step = (p.dtype == DType::kF64 ? kStepF64 : kStepC64) + narrow * kNarrowStepWide;
    return s.tiles_m * s.tiles_n * (kTile + k * step);
  }
  const double step = p.is_half() ? kStepHalf + narrow * kNarrowStepHalf : kStepF32 + narrow * kNarrowStepF32;
  return s.tiles_m * s.tiles_n * (kTile + k * step);
}

/// Halves of which tensor cores were measured to be faster: large ones, or few.
bool suits_tensor_cores(const Problem& p) {
  if (!p.is_half() || alignment_a(p) < 16 || alignment_b(p) < 16) return false;
  if ((p.a_major() == Major::kK ? p.k : p.m) % 8 != 0 || (p.b_major() == Major::kK ? p.k : p.n) % 8 != 0) return false;
  return !shares_operand(p) && (p.m * p.n * p.k >= kManyFma || p.batches() < kFewForTensorCores);
}

/// Problems of which torch, or another kernel, was measured to be faster than this family (an H100, float32 and both
/// 16-bit types, 674 shapes). The kernels are limited by the instructions that their warps issue, which grow with M * N
/// * K and for 16-bit elements; and few matrices do not fill the chip.
bool was_slower(const Problem& p, const Schedule& s) {
  const int64_t multiplications = p.m * p.n * p.k;
  const bool has_c = p.c.data != nullptr;
  if (is_wide(p.dtype) && std::min(p.m, p.n) == 1 && multiplications > kFewOfVector && p.batches() < kFewVectors) {
    return true;
  }
  if (!p.is_half()) {
    const int64_t most = has_c || shares_operand(p) ? 3000 : 13000;
    return p.batches() < 1600 && multiplications >= most;
  }
  if (std::min(p.m, p.n) == 1 && p.k > kLongOfVector) return true;
  const bool copies_elements = (!s.a.shared && s.a.copy != Copy::kFlat && s.a.piece == 2) ||
                               (!s.b.shared && s.b.copy != Copy::kFlat && s.b.piece == 2);
  const bool is_even = p.m % 2 == 0 && p.n % 2 == 0 && p.k % 2 == 0;
  return multiplications >= 13500 || (p.batches() < 2500 && multiplications >= 10000) ||
         (copies_elements && multiplications >= 4000) || (has_c && is_even && multiplications >= 900);
}

/// What memory and instructions take, which only partly hide each other.
double predict_us(const Problem& p, const DeviceFacts& facts, const Line& line) {
  const double memory_us = dram_bytes(p) / (dram_gbs(facts) * 1e3 * kStreamShare);
  if (!tiny_batch::fits(p, line.shape)) return kFixedUs + memory_us;  // a table may ask for problems that are refused
  Problem for_any_beta = p;
  for_any_beta.beta = 1.0f;
  const Schedule s = schedule(for_any_beta, facts, line);
  const int bytes = dtype_bytes(p.dtype);
  double instructions = multiplying(p, s, line) + copying(s.a, bytes) + copying(s.b, bytes);
  instructions += s.plain ? copying(s.d, dtype_bytes(p.out_dtype)) : kEpilogue * static_cast<double>(p.m * p.n);
  const double rate = facts.sm_count * chip_of(facts.cc).clock_ghz * 1e3 * kIssued;
  const double issue_us = instructions * static_cast<double>(p.batches()) / 32 / rate;
  double us = kFixedUs + std::pow(std::pow(memory_us, kOverlap) + std::pow(issue_us, kOverlap), 1 / kOverlap);
  if (suits_tensor_cores(p)) us *= kBesideTensorCores;
  if (was_slower(p, s)) us *= kSlower;
  if (is_wide(p.dtype) && std::max({p.m, p.n, p.k}) > kFewWide) us *= kLargeWide;
  return is_tiny_batch(p) || is_vector_batch(p) ? us : kUntimed * std::max(us, kLeastUs);
}

template <class C>
constexpr Line kLine = {
    .tile = {.bm = C::TM, .bn = C::TN, .bk = C::K_STEP, .stages = 1, .threads = tiny_batch::kMostThreads},
    .smem_bytes = tiny_batch::kMostSmemBytes,
    .shape = {C::TM, C::TN, C::WHOLE, C::BLOCKS},
};

template <class C>
struct Functions : ScheduledFunctions<kLine<C>, eligible, predict_us, schedule, &tiny_batch::launch<C, DType::kF16>,
                                      &tiny_batch::launch<C, DType::kBF16>, &tiny_batch::launch<C, DType::kF32>> {
  static Status launch(const Problem& p, const DeviceFacts& facts, void* workspace, Stream stream) {
    if (!is_wide(p.dtype)) return Functions::ScheduledFunctions::launch(p, facts, workspace, stream);
    const Schedule s = schedule(p, facts, kLine<C>);
    return p.dtype == DType::kF64 ? call<&tiny_batch::launch<C, DType::kF64>>(p, s, stream)
                                  : call<&tiny_batch::launch<C, DType::kC64>>(p, s, stream);
  }
};

template <class C>
constexpr Name name() {
  return C::WHOLE ? name_of("tiny_batch_", C::TM, "x", C::TM, "x", C::TM) : name_of("tiny_batch_t", C::TM, "x", C::TN);
}
template <class C>
constexpr Name kName = name<C>();

template <class C>
constexpr auto variants_of(const tiny_batch::Kernel<C>&) {
  constexpr uint32_t kTypes = kHalfTypes | kFloat32 | (C::BLOCKS_OF_8 > 0 ? kFloat64 | kComplex64 : 0);
  Variant v = variant_of<Functions<C>>(kName<C>, Family::kTinyBatch, kTypes, kLine<C>);
  v.sums = Sums::kChain;
  return std::array{v};
}

constexpr auto kVariants = variants_of_list(tiny_batch::kKernels, [](auto kernel) { return variants_of(kernel); });

}  // namespace

const VariantList kTinyBatchVariants = kVariants;

}  // namespace hgemm
