// The variants of batched_gemv: which problems each one can run, its schedule, and its predicted time.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>

#include "core/chip.h"
#include "core/cost.h"
#include "core/problem.h"
#include "core/variant_list.h"
#include "kernels/batched_gemv/config.h"
#include "kernels/batched_gemv/list.h"
#include "kernels/variants.h"

namespace hgemm {
namespace {

using batched_gemv::Schedule;

/// A kernel of list.h as plain values.
struct Line {
  Tile tile;  // bm: loads of a thread in flight; stages: blocks per SM
  int smem_bytes;
};

// Fitted to 261 times of the two kernels at 134 shapes on an H200 (NOTES.md). The mean error at shapes that were left
// out of the fit is 7 %.
constexpr double kFixedUs = 2.1;                    // launch, sums, drain
constexpr double kRoundUs = 0.35, kLoadUs = 0.036;  // a round of loads of a warp, and each load in it
constexpr double kStreamShare = 0.87;               // of the read bandwidth

// The predictions are multiplied by these factors. In float32 torch mostly takes longer than its model says. In 16 bits
// the margin for batches of vectors (dispatch/estimates.cc) allows for other families' errors, which are larger.
// Smaller batches and matrices than the least that were timed, shared operands and other chips get kUntimedDoubt.
constexpr double kFloatDoubt = 0.87, kHalfDoubt = 1.0, kHalfMnDoubt = 0.94, kSmallHalfDoubt = 0.85, kUntimedDoubt = 1.5;
constexpr int64_t kFewElements = 20000;
constexpr int64_t kLeastBatch = 16, kLeastExtent = 24;

constexpr int kWarpsPerSm = 16;        // so many warps are wanted where K can be shared
constexpr int kLeastBytesAlong = 128;  // contiguous bytes that a warp reads, at least, if the matrix has them

int power_of_two(int64_t least, int most) {
  int out = 1;
  while (out < most && out < least) out *= 2;
  return out;
}

int alignment_in(const Problem& p, const Matrix& x, int64_t ld) {
  return alignment_of(x, p.dtype, ld, p.batch[0], p.batch[1]);
}

/// The elements of a row or column of W that are contiguous.
int64_t along_of(const ShortSide& sides, int64_t k) {
  return sides.w_major == Major::kK ? k : sides.rows;
}

/// Whether W consists of aligned chunks of 16 bytes.
bool has_whole_chunks(const Problem& p, const ShortSide& sides) {
  return alignment_in(p, *sides.w, sides.ldw) == 16 && along_of(sides, p.k) * dtype_bytes(p.dtype) % 16 == 0;
}

Schedule schedule(const Problem& p, const DeviceFacts& facts, const Line& line) {
  const ShortSide sides = short_side_of(p);
  const bool k_major = sides.w_major == Major::kK;
  const int size = dtype_bytes(p.dtype);
  const int64_t batches = p.batches(), wanted = int64_t{facts.sm_count} * kWarpsPerSm;
  Schedule s{};
  s.dependent = has_dependent_launch(facts.cc);
  s.bytes = has_whole_chunks(p, sides) ? 16 : size;
  const int elements = s.bytes / size;
  s.wide_x = sides.x_major == Major::kK && alignment_in(p, *sides.x, 0) == 16;

  const int64_t along = along_of(sides, p.k);
  const int loads = batched_gemv::loads_of(line.tile.bm, s.bytes);
  const int64_t chunks = std::max<int64_t>(ceil_div(along, elements), 1);
  // Cuts tiles for so many lanes, and shares K between warps while there are fewer than wanted.
  const auto cut = [&](int lanes, int rows) {
    s.lanes = lanes;
    s.rows = rows;
    s.width = k_major ? rows * (32 / lanes) : lanes * elements;
    s.tiles = static_cast<int>(ceil_div(sides.rows, s.width));
    s.all_tiles = s.tiles * batches;
    const int64_t rounds = k_major ? ceil_div(chunks, lanes * (loads / rows)) : ceil_div(p.k, loads * (32 / lanes));
    const int most = power_of_two(rounds, batched_gemv::kMostWarps);
    s.warps = 1;
    while (s.warps < most && s.all_tiles * s.warps < wanted) s.warps *= 2;
    s.rounds = ceil_div(rounds, s.warps);
    return s.all_tiles * s.warps;
  };
  // The lanes beyond the end of a row have nothing to load. A warp should still read whole lines.
  const int most = power_of_two(chunks, 32);
  const int least = std::min(most, kLeastBytesAlong / s.bytes);
  const auto covered = [&](int lanes) { return ceil_div(chunks, lanes) * lanes; };
  int lanes = most;
  for (int l = most / 2; l >= least; l /= 2) {
    if (covered(l) * 8 < covered(lanes) * 7) lanes = l;
  }
  int64_t warps = cut(lanes, k_major ? loads : 1);
  if (k_major) {
    // With fewer rows a lane has more chunks of each, of which more than a quarter should lie within K.
    const bool has_chunks = 4 * chunks > int64_t{lanes} * (loads / batched_gemv::kFewRows);
    if (warps < wanted && s.bytes == 16 && has_chunks) cut(lanes, batched_gemv::kFewRows);
  } else {
    for (; lanes > least && warps < wanted; lanes /= 2) warps = cut(lanes / 2, 1);
  }
  s.teams = batched_gemv::kMostWarps / s.warps;
  while (s.teams > 1 && ceil_div(s.all_tiles, s.teams) < 2 * facts.sm_count) s.teams /= 2;
  s.blocks = ceil_div(s.all_tiles, s.teams);
  return s;
}

bool eligible(const Problem& p, const Line&, Reason* why) {
  constexpr int64_t kMaxRows = int64_t{1} << 28, kMaxResults = int64_t{1} << 30;
  const auto m = static_cast<long long>(p.m), n = static_cast<long long>(p.n), k = static_cast<long long>(p.k);
  if (std::min(m, n) != 1) return refuse(why, "M or N must be 1, got %lld and %lld", m, n);
  if (std::max({m, n, k}) > kMaxRows) {
    return refuse(why, "M, N and K must be at most 2^28, got %lld, %lld and %lld", m, n, k);
  }
  const ShortSide sides = short_side_of(p);
  if (!has_whole_chunks(p, sides) && (p.is_half() || sides.w_major != Major::kK)) {
    return refuse(why, "matrices must have rows of whole aligned 16-byte chunks, except in float32 along K");
  }
  // A tile has at least two results, or is the only one of its matrix.
  if (p.batches() > kMaxResults || p.batches() * std::max(p.m, p.n) > kMaxResults) {
    return refuse(why, "there must be at most 2^30 results, got %lld x %lld", static_cast<long long>(p.batches()),
                  std::max(m, n));
  }
  return true;
}

/// The factor by which a kernel may take longer than predicted, in relation to what torch's model says.
double doubt_of(const Problem& p, const DeviceFacts& facts) {
  const bool was_timed = p.batches() >= kLeastBatch && std::min(std::max(p.m, p.n), p.k) >= kLeastExtent &&
                         !shares_operand(p) && is_measured(facts.cc);
  if (!was_timed) return kUntimedDoubt;
  if (p.dtype == DType::kF32) return kFloatDoubt;
  if (std::max(p.m, p.n) * p.k <= kFewElements) return kSmallHalfDoubt;
  return short_side_of(p).w_major == Major::kMN ? kHalfMnDoubt : kHalfDoubt;
}

/// The time to read and write the bytes, and the time of the rounds of loads of all warps that are resident one after
/// the other, hide each other in part.
double predict_us(const Problem& p, const DeviceFacts& facts, const Line& line) {
  const Schedule s = schedule(p, facts, line);
  const double slots = facts.sm_count * (line.tile.stages * batched_gemv::kMostWarps / (s.warps * s.teams));
  const double waves = std::max(static_cast<double>(s.blocks) / slots, 1.0);
  const double round_us = kRoundUs + kLoadUs * batched_gemv::loads_of(line.tile.bm, s.bytes);
  const double loads_us = waves * static_cast<double>(s.rounds) * round_us;
  const double stream_us = dram_bytes(p) / (dram_gbs(facts) * kStreamShare * 1e3);
  return doubt_of(p, facts) * (kFixedUs + std::sqrt(stream_us * stream_us + loads_us * loads_us));
}

template <class C>
constexpr Line kLine = {
    .tile = {.bm = C::LOADS, .bn = 1, .bk = 1, .stages = C::BLOCKS, .threads = 32 * batched_gemv::kMostWarps},
    .smem_bytes = batched_gemv::kMostWarps * 32 * 16 * 4,
};

template <class C>
using Functions = ScheduledFunctions<kLine<C>, eligible, predict_us, schedule, &batched_gemv::launch<C, DType::kF16>,
                                     &batched_gemv::launch<C, DType::kBF16>, &batched_gemv::launch<C, DType::kF32>>;

template <class C>
constexpr Name kName = name_of("batched_gemv_l", C::LOADS);

template <class C>
constexpr auto variants_of(const batched_gemv::Kernel<C>&) {
  return std::array{variant_of<Functions<C>>(kName<C>, Family::kBatchedGemv, kHalfTypes | kFloat32, kLine<C>)};
}

constexpr auto kVariants = variants_of_list(batched_gemv::kKernels, [](auto kernel) { return variants_of(kernel); });

}  // namespace

const VariantList kBatchedGemvVariants = kVariants;

}  // namespace hgemm
