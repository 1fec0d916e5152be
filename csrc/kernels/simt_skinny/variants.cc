// The variants of simt_skinny: which problems each one can run, its schedule, and its predicted time.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <tuple>

#include "core/chip.h"
#include "core/cost.h"
#include "core/problem.h"
#include "core/variant_list.h"
#include "kernels/simt_skinny/config.h"
#include "kernels/simt_skinny/list.h"
#include "kernels/variants.h"
#include "tile/counters.h"

namespace hgemm {
namespace {

using simt_skinny::Schedule;

/// A kernel of list.h as plain values.
struct Line {
  Tile tile;  // for a K-major W; bm: rows of W, bn: rows of x
  int smem_bytes;
  int tile_rows_mn, step_mn;  // bm and bk for an MN-major W
  int blocks;                 // per SM
  double share;
};

// Fitted to 218 times of the H200 (1024..32000 x 4096 and 4096 x 14336, NT and NN, in 1 to 32 slices of K): mean error
// 5.5 %, worst 26 %. The model assumes that all blocks of a wave are equally fast, and that a wave is the faster the
// more blocks it has, since they hide each other's latency. Full waves are therefore best by far.
constexpr double kFixedUs = 1.0;      // launch and drain
constexpr double kWaveUs = 2.8;       // pipeline fill, sums and results of a block
constexpr double kSplitUs = 3.0;      // fixed cost of sums through the workspace
constexpr double kSumRate = 52;       // GB/s at which the last block of a tile reads the sums of its slices
constexpr double kFewShare = 0.27;    // the part of a full wave's speed that does not depend on its number of blocks
constexpr double kSpread = 1.4;       // how the end of each full wave spreads: the last wave begins before it
constexpr double kWeightX = 0.5;      // cost of a byte of x, from L2, against a byte of W
constexpr double kStreamGbs = 3500;   // GB/s of W from DRAM, of the H200's 4600
constexpr double kNarrowShare = 0.8;  // share of the rate of 16-byte copies that 4-byte copies of W reach (NOTES.md)
constexpr int kManySlices = 16;       // more slices do not pay where these already give most SMs a block
constexpr int kSlices[] = {1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32};

/// A schedule and its predicted time in microseconds.
struct Plan {
  Schedule schedule;
  double us;
};

/// Returns the schedule whose number of slices of K has the shortest predicted time, and that time.
Plan plan(const Problem& p, const DeviceFacts& facts, const Line& line) {
  const ShortSide sides = short_side_of(p);
  const Chip& chip = chip_of(facts.cc);
  const bool k_major = sides.w_major == Major::kK;
  const int bn = k_major ? line.tile.bm : line.tile_rows_mn, bk = k_major ? line.tile.bk : line.step_mn;
  const int64_t tiles = ceil_div(sides.rows, bn), in_all = tiles * p.batches(), sms = facts.sm_count;
  const int64_t steps = std::max<int64_t>(ceil_div(p.k, bk), 1);
  const int64_t blocks_per_sm = std::clamp<int64_t>(facts.smem_per_sm / (line.smem_bytes + 1024), 1, line.blocks);
  const double most = static_cast<double>(sms * blocks_per_sm), tile_flops = 2.0 * bn * bk * line.tile.bn;
  const double narrow = (sides.swapped ? alignment_a(p) : alignment_b(p)) == 16 ? 1.0 : kNarrowShare;
  const double rate = kStreamGbs * dram_share(facts) * narrow * 1e3;
  const double peak = chip.simt_flops * line.share * narrow * chip.clock_ghz * static_cast<double>(sms) * 1e3;
  // The time in which `blocks` concurrent blocks all advance by one stage, in microseconds.
  const auto step_us = [&](double blocks) {
    const double at_least = std::max(blocks, static_cast<double>(sms) / 2);
    const double flops_us = at_least * tile_flops / (peak * (kFewShare + (1 - kFewShare) * at_least / most));
    return std::max(flops_us, blocks * (bn + line.tile.bn * kWeightX) * bk * 4 / rate);
  };
  const double full_us = step_us(most);
  Plan best{{}, std::numeric_limits<double>::infinity()};
  for (const int wanted : kSlices) {
    if (wanted > 1 && (wanted > steps || in_all > tile::kMaxCounted)) break;
    if (wanted > kManySlices && in_all * kManySlices * 4 > sms * 3) break;
    const int64_t slice_steps = ceil_div(steps, wanted), slices = ceil_div(steps, slice_steps);
    const double blocks = static_cast<double>(in_all * slices), in_slice = static_cast<double>(slice_steps);
    const double waves = std::floor(blocks / most), rest = blocks - waves * most;
    double us = kFixedUs + waves * (in_slice * full_us + kWaveUs);
    if (rest > 0) {
      const double alone = in_slice * step_us(rest), spread = in_slice * full_us * rest / most;
      us += kWaveUs + spread + (alone - spread) / (1 + kSpread * waves);
    }
    us = std::max(us, kFixedUs + dram_bytes(p) / rate);
    if (slices > 1) us += kSplitUs + static_cast<double>(slices) * bn * line.tile.bn * 4 / (kSumRate * 1e3);
    if (us < best.us) {
      best.us = us;
      best.schedule = {
          .tile_rows = bn,
          .tiles = static_cast<int>(tiles),
          .slices = static_cast<int>(slices),
          .slice_k = static_cast<int>(slice_steps * bk),
          .dependent = has_dependent_launch(facts.cc),
      };
    }
  }
  return best;
}

bool eligible(const Problem& p, const Line& line, Reason* why) {
  return has_short_side(p, line.tile.bn, 28, why);
}

double predict_us(const Problem& p, const DeviceFacts& facts, const Line& line) {
  return plan(p, facts, line).us;
}

Schedule schedule(const Problem& p, const DeviceFacts& facts, const Line& line) {
  return plan(p, facts, line).schedule;
}

template <class C>
constexpr Line line_of() {
  using K = simt_skinny::Layout<C, Major::kK>;
  using MN = simt_skinny::Layout<C, Major::kMN>;
  return {
      .tile = {.bm = K::BN, .bn = C::COLS, .bk = K::BK, .stages = C::STAGES, .threads = simt_skinny::kThreads},
      .smem_bytes = std::max(K::kSmemBytes, MN::kSmemBytes),
      .tile_rows_mn = MN::BN,
      .step_mn = MN::BK,
      .blocks = C::BLOCKS,
      .share = std::get<simt_skinny::Kernel<C>>(simt_skinny::kKernels).share,
  };
}
template <class C>
constexpr Line kLine = line_of<C>();

template <class C>
using Functions = SlicedFunctions<kLine<C>, eligible, predict_us, schedule, &simt_skinny::launch<C>>;

template <class C>
constexpr Name kName = name_of("simt_skinny_m", C::COLS);

template <class C>
constexpr auto variants_of(const simt_skinny::Kernel<C>&) {
  return std::array{variant_of<Functions<C>>(kName<C>, Family::kSimtSkinny, kFloat32, kLine<C>)};
}

constexpr auto kVariants = variants_of_list(simt_skinny::kKernels, [](auto kernel) { return variants_of(kernel); });

}  // namespace

const VariantList kSimtSkinnyVariants = kVariants;

}  // namespace hgemm
