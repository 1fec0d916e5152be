// The list of simt_skinny kernels: what each one serves, how it cuts the work and what it is predicted to take.
#include <algorithm>
#include <cstdint>
#include <iterator>
#include <limits>

#include "core/chip.h"
#include "core/cost.h"
#include "core/problem.h"
#include "core/variant_list.h"
#include "kernels/simt_skinny/config.h"
#include "kernels/variants.h"
#include "tile/counters.h"

namespace hgemm {
namespace {

using simt_skinny::Schedule;

/// One line of list.inc as values.
struct Line {
  Tile tile;  // of a K-major W; bm: rows of W, bn: rows of x
  int smem_bytes;
  int tile_rows_mn, step_mn;  // the same of an MN-major W
  int blocks;
  double rate, share;
};

constexpr double kFixedUs = 3.0;      // start, first bytes, drain
constexpr double kSplitUs = 1.2;      // sums through the workspace
constexpr double kBlockUs = 0.4;      // an SM's, for each of its blocks: sums and results
constexpr double kStageRate = 18;     // GB/s that a block takes in for each stage in flight
constexpr double kPartialRate = 2e3;  // GB/s of sums to the workspace and back
constexpr int kSlices[] = {1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32};

struct Plan {
  Schedule schedule;
  double us;
};

/// The cut of K that is predicted to take the least, and that time.
Plan plan(const Problem& p, const DeviceFacts& facts, const Line& line) {
  const Roles roles = roles_of(p);
  const Chip& chip = chip_of(facts.cc);
  const bool k_major = roles.w_major == Major::kK;
  const int bn = k_major ? line.tile.bm : line.tile_rows_mn, bk = k_major ? line.tile.bk : line.step_mn;
  const int64_t tiles = ceil_div(roles.rows, bn), in_all = tiles * p.batches(), sms = facts.sm_count;
  const int64_t steps = std::max<int64_t>(ceil_div(p.k, bk), 1);
  const double bytes = dram_bytes(p), rate = line.rate * dram_share(facts.cc);
  const double step_us = 2.0 * bn * bk * line.tile.bn / (chip.simt_flops * line.share * chip.clock_ghz * 1e3);
  Plan best{{}, std::numeric_limits<double>::infinity()};
  for (const int wanted : kSlices) {
    if (wanted > 1 && (wanted > steps || in_all > tile::kMaxCounted)) break;
    const int64_t slice_steps = ceil_div(steps, wanted), slices = ceil_div(steps, slice_steps);
    const int64_t blocks = in_all * slices;
    const double resident = static_cast<double>(std::min(blocks, sms * line.blocks));
    const double memory_us = bytes / (std::min(rate, resident * kStageRate * (line.tile.stages - 1)) * 1e3);
    const double sm_us =
        static_cast<double>(ceil_div(blocks, sms)) * (static_cast<double>(slice_steps) * step_us + kBlockUs);
    double us = kFixedUs + std::max(memory_us, sm_us);
    if (slices > 1) us += kSplitUs + static_cast<double>(blocks) * bn * line.tile.bn * 4 / (kPartialRate * 1e3);
    if (us < best.us) {
      best = {{static_cast<int>(tiles), static_cast<int>(slices), static_cast<int>(slice_steps * bk),
               has_dependent_launch(facts.cc)},
              us};
    }
  }
  return best;
}

using Launcher = Status (*)(const Problem&, const Schedule&, void*, Stream);

/// The functions of a Variant for one line of the list.
template <const Line& kLine, Launcher kLaunch>
struct Functions {
  static bool eligible(const Problem& p, const DeviceFacts&, Reason* why) {
    return has_short_side(p, kLine.tile.bn, 28, why);
  }
  static size_t workspace(const Problem& p, const DeviceFacts& facts) {
    const Schedule s = plan(p, facts, kLine).schedule;
    if (s.slices == 1) return 0;
    const int rows = roles_of(p).w_major == Major::kK ? kLine.tile.bm : kLine.tile_rows_mn;
    return sizeof(float) * s.slices * static_cast<size_t>(s.tiles * p.batches()) * rows * kLine.tile.bn;
  }
  static double predict_us(const Problem& p, const DeviceFacts& facts) { return plan(p, facts, kLine).us; }
  static Status launch(const Problem& p, const DeviceFacts& facts, void* workspace, Stream stream) {
    return kLaunch(p, plan(p, facts, kLine).schedule, workspace, stream);
  }
};

template <class C>
constexpr Line line_of(double rate, double share) {
  using K = simt_skinny::Layout<C, Major::kK>;
  using MN = simt_skinny::Layout<C, Major::kMN>;
  return {{K::BN, C::COLS, K::BK, C::STAGES, simt_skinny::kThreads},
          std::max(K::kSmemBytes, MN::kSmemBytes),
          MN::BN,
          MN::BK,
          C::BLOCKS,
          rate,
          share};
}

template <class Functions>
constexpr Variant float_variant(const char* name, const Line& line) {
  return {name,
          Family::kSimtSkinny,
          Numerics::kAccumulateF32,
          80,
          kAnyNewer,
          1u << static_cast<int>(DType::kF32),
          line.tile,
          line.smem_bytes,
          false,
          Functions::eligible,
          Functions::workspace,
          Functions::predict_us,
          Functions::launch,
          false,
          nullptr,
          {},
          Sums::kVaries};
}

#define SIMT_SKINNY(COLS, STAGES, BLOCKS, RATE, SHARE) \
  constexpr Line kLine_##COLS = line_of<simt_skinny::Config<COLS, STAGES, BLOCKS>>(RATE, SHARE);
#include "kernels/simt_skinny/list.inc"
#undef SIMT_SKINNY

}  // namespace

const Variant kSimtSkinnyVariants[] = {
#define SIMT_SKINNY(COLS, ...) \
  float_variant<Functions<kLine_##COLS, simt_skinny::launch_##COLS>>("simt_skinny_m" #COLS, kLine_##COLS),
#include "kernels/simt_skinny/list.inc"
#undef SIMT_SKINNY
};
const int kSimtSkinnyVariantCount = static_cast<int>(std::size(kSimtSkinnyVariants));

}  // namespace hgemm
