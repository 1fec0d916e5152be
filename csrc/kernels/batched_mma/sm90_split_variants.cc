// The float32 variants of batched_mma: which problems each one can run, with how many blocks, and its predicted time.
#include <algorithm>
#include <array>
#include <cstdint>
#include <tuple>

#include "core/chip.h"
#include "core/cost.h"
#include "core/problem.h"
#include "core/variant_list.h"
#include "kernels/batched_mma/sm90_split_config.h"
#include "kernels/batched_mma/sm90_split_list.h"
#include "kernels/variants.h"
#include "tile/split_planes.h"

namespace hgemm {
namespace {

using batched_split::Schedule;

/// A kernel of sm90_split_list.h as plain values.
struct Line {
  Tile tile;
  int smem_bytes;
  int resident;  // blocks per SM, as limited by registers
};

constexpr int64_t kMostPitch = (int64_t{1} << 29) - 1;
// Fitted to 284 timings of batches on an H200. The predictions are 9 % off (root mean square), and 8 % at 283 others.
constexpr double kStartUs = 2.7;       // launch, first loads, drain
constexpr double kStreamShare = 0.87;  // share of the read bandwidth that the kernel reaches
/// Clocks of an SM for each output tile and each of its k-tiles, and what they take more if D, or an operand, does not
/// consist of whole aligned chunks of 16 bytes.
struct Clocks {
  double tile, step, narrow_tile, narrow_step;
};
constexpr Clocks kBusy = {884, 1114, 482, 727};
constexpr Clocks kWaiting = {435, 1588, 839, 840};  // of a block alone, which the other blocks hide
// Predictions are longer by these factors, so that what the dispatcher's margin chooses was faster than torch: with a
// K-major A 19 of the held-out batches, the slowest by 1.12, and 17 of the others, the slowest by 1.03. MN-major,
// batches that were predicted to be 1.2 times as fast as torch had 0.85 to 0.88 of its speed.
constexpr double kDoubt = 1.1, kDoubtMN = 1.3;

int64_t tiles_of(const Problem& p, const Line& line) {
  return ceil_div(p.m, line.tile.bm) * ceil_div(p.n, line.tile.bn) * p.batches();
}

/// Blocks that are resident on the device at the same time.
int64_t block_slots(const DeviceFacts& facts, const Line& line) {
  const int registers = 65536 / (line.tile.threads * line.resident);
  const int resident = resident_ctas(facts, line.smem_bytes, line.tile.threads, registers);
  return int64_t{std::max(1, facts.sm_count)} * std::min(line.resident, resident);
}

Schedule schedule(const Problem& p, const DeviceFacts& facts, const Line& line) {
  return {static_cast<int>(std::min(tiles_of(p, line), block_slots(facts, line))), has_dependent_launch(facts.cc)};
}

bool eligible(const Problem& p, const Line& line, Reason* why) {
  if (!is_built_for_sm90a(why)) return false;
  if (p.b_is_a_transposed) return refuse(why, "%s", "x @ x.T would not be symmetric to the bit");
  if (std::max(p.lda(), p.ldb()) > kMostPitch) {
    return refuse(why, "leading dimensions must be at most 2^29 - 1, got %lld and %lld",
                  static_cast<long long>(p.lda()), static_cast<long long>(p.ldb()));
  }
  return tile::split::is_countable(p, line.tile, why);
}

double predict_us(const Problem& p, const DeviceFacts& facts, const Line& line) {
  const double clk_per_us = chip_of(facts.cc).clock_ghz * 1e3, steps = static_cast<double>(ceil_div(p.k, line.tile.bk));
  const bool is_narrow = !batched_split::is_wide(p), is_narrow_d = alignment_d(p) < 16 || p.n % 4 != 0;
  const auto clocks = [&](const Clocks& of) {
    const double step = of.step + (is_narrow ? of.narrow_step : 0.0);
    return of.tile + (is_narrow_d ? of.narrow_tile : 0.0) + step * steps;
  };
  const int64_t tiles = tiles_of(p, line);
  const double busy = static_cast<double>(ceil_div(tiles, std::max(1, facts.sm_count))) * clocks(kBusy);
  const double waiting = static_cast<double>(ceil_div(tiles, block_slots(facts, line))) * clocks(kWaiting);
  const double memory_us = dram_bytes(p) / (dram_gbs(facts) * 1e3 * kStreamShare);
  return (p.a_major() == Major::kK ? kDoubt : kDoubtMN) *
         (kStartUs + std::max(memory_us, std::max(busy, waiting) / clk_per_us));
}

template <class C>
constexpr Line kLine = {
    .tile = {.bm = C::BM, .bn = C::BN, .bk = C::BK, .stages = C::STAGES, .threads = C::kThreads},
    .smem_bytes = C::kSmemBytes,
    .resident = C::RESIDENT,
};

template <class C>
using Functions = ScheduledFunctions<kLine<C>, eligible, predict_us, schedule, &batched_split::launch<C>,
                                     &batched_split::launch<C>, &batched_split::launch<C>>;

template <class C>
constexpr Name kName = name_of("batched_mma_split_", C::BM, "x", C::BN);

template <class C>
constexpr auto variants_of(const batched_split::Kernel<C>&) {
  Variant v = variant_of<Functions<C>>(kName<C>, Family::kBatchedMma, kFloat32, kLine<C>);
  v.arithmetic = Arithmetic::kSplitF32;
  v.min_cc = kHopper;
  v.max_cc = kHopper;
  return std::array{v};
}

constexpr auto kVariants = variants_of_list(batched_split::kKernels, [](auto kernel) { return variants_of(kernel); });

}  // namespace

const VariantList kBatchedSplitVariants = kVariants;

}  // namespace hgemm
