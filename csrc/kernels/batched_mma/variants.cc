// The list of batched_mma kernels: what each one serves, how many blocks it runs and what it is predicted to take.
#include "kernels/batched_mma/config.h"

#include <algorithm>
#include <cstdint>
#include <iterator>

#include "core/chip.h"
#include "core/cost.h"
#include "core/problem.h"
#include "core/variant_list.h"
#include "kernels/variants.h"

namespace hgemm {
namespace {

using batched_mma::Schedule;

/// One line of list.inc as values.
struct Line {
  Tile tile;
  int smem_bytes;  // at most
  int wide_smem_bytes;
  int problems;  // of a block at a time
  int resident;  // blocks that an SM's registers hold
};

constexpr int64_t kMaxExtent = int64_t{1} << 30;
// Measured on the H200.
constexpr double kFixedUs = 2.0;      // start, first bytes, drain
constexpr double kStreamShare = 0.9;  // of the read bandwidth
constexpr double kStepUs = 0.5;       // a step of K behind the first with one in flight
// What an SM takes for a problem, for a step of 16 k of 16 rows and 16 columns of the tile, and for as much of
// unaligned operands.
constexpr double kProblemUs = 0.03;
constexpr double kTileUs = 0.02;
constexpr double kNarrowUs = 0.1;

int64_t block_slots(const Problem& p, const DeviceFacts& facts, const Line& line) {
  const int smem_bytes = batched_mma::is_wide(p) ? line.wide_smem_bytes : line.smem_bytes;
  return int64_t{facts.sm_count} * std::min(line.resident, resident_ctas(facts, smem_bytes, line.tile.threads, 64));
}

Schedule schedule(const Problem& p, const DeviceFacts& facts, const Line& line) {
  const int64_t blocks = std::min(ceil_div(p.batches(), line.problems), block_slots(p, facts, line));
  return {static_cast<int>(blocks), has_dependent_launch(facts.cc)};
}

bool eligible(const Problem& p, const Line& line, Reason* why) {
  if (p.m > line.tile.bm || p.n > line.tile.bn) {
    return refuse(why, "M and N must be at most %d and %d, got %lld and %lld", line.tile.bm, line.tile.bn,
                  static_cast<long long>(p.m), static_cast<long long>(p.n));
  }
  if (p.k > kMaxExtent) return refuse(why, "K must be at most 2^30, got %lld", static_cast<long long>(p.k));
  if (p.batches() > INT32_MAX) {
    return refuse(why, "at most 2^31 - 1 batches, got %lld", static_cast<long long>(p.batches()));
  }
  return true;
}

/// What memory takes, or what instructions take, and K's steps, which only their neighbours on an SM hide.
double predict_us(const Problem& p, const DeviceFacts& facts, const Line& line) {
  const double k16 = static_cast<double>(ceil_div(p.k, 16)), extents = static_cast<double>(p.m + p.n);
  const double steps = static_cast<double>(std::max<int64_t>(0, ceil_div(p.k, line.tile.bk) - 1));
  const double problem_us = kProblemUs + k16 / 32 * (line.tile.bm + line.tile.bn) * kTileUs +
                            (batched_mma::is_wide(p) ? 0.0 : k16 / 32 * extents * kNarrowUs);
  const double rounds = static_cast<double>(ceil_div(p.batches(), facts.sm_count));
  const double memory = dram_bytes(p) / (dram_gbs(facts) * 1e3 * kStreamShare);
  return kFixedUs + std::max(memory, problem_us * rounds) + steps * kStepUs / (line.tile.stages - 1);
}

using Launcher = Status (*)(const Problem&, const Schedule&, Stream);

template <const Line& kLine, Launcher kF16, Launcher kBF16>
using Functions = ScheduledFunctions<kLine, eligible, predict_us, schedule, kF16, kBF16>;

template <class C>
constexpr Line line_of() {
  constexpr auto kK = Major::kK, kMN = Major::kMN;
  return {{C::BM, C::BN, C::BK, C::STAGES, C::kThreads},
          std::max({C::smem_bytes(kK, kK, true), C::smem_bytes(kK, kMN, true), C::smem_bytes(kMN, kMN, true)}),
          C::smem_bytes(kK, kK, false),
          C::PROBLEMS,
          C::RESIDENT};
}

#define BATCHED_MMA(BM, BN, BK, WM, WN, STAGES, PROBLEMS, RESIDENT)    \
  constexpr Line kLine_##BM##x##BN##x##BK##_w##WM##x##WN##_s##STAGES = \
      line_of<batched_mma::Config<BM, BN, BK, WM, WN, STAGES, PROBLEMS, RESIDENT>>();
#include "kernels/batched_mma/list.inc"
#undef BATCHED_MMA

}  // namespace

const Variant kBatchedMmaVariants[] = {
#define BATCHED_MMA(BM, BN, BK, WM, WN, STAGES, PROBLEMS, RESIDENT)                                              \
  half_variant<Functions<kLine_##BM##x##BN##x##BK##_w##WM##x##WN##_s##STAGES,                                    \
                         batched_mma::launch_f16_##BM##x##BN##x##BK##_w##WM##x##WN##_s##STAGES,                  \
                         batched_mma::launch_bf16_##BM##x##BN##x##BK##_w##WM##x##WN##_s##STAGES>>(               \
      "batched_mma_" #BM "x" #BN "x" #BK "_w" #WM "x" #WN "_s" #STAGES, Family::kBatchedMma, Sums::kInOrder, 80, \
      kAnyNewer, kLine_##BM##x##BN##x##BK##_w##WM##x##WN##_s##STAGES),
#include "kernels/batched_mma/list.inc"
#undef BATCHED_MMA
};
const int kBatchedMmaVariantCount = static_cast<int>(std::size(kBatchedMmaVariants));

}  // namespace hgemm
