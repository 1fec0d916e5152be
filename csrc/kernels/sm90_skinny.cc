// The list of sm90_skinny kernels: what each one serves, how it cuts the work and what it is predicted to take.
#include "kernels/sm90_skinny.h"

#include <algorithm>
#include <cstdint>
#include <iterator>

#include "core/cost.h"
#include "core/problem.h"
#include "core/variant_list.h"
#include "kernels/variants.h"

namespace hgemm {
namespace {

using sm90_skinny::Roles;
using sm90_skinny::Schedule;

/// One line of configs_sm90_skinny.inc as values.
struct Line {
  Tile tile;  // bm: rows of W, bn: rows of x
  int smem_bytes;
  double rate;
};

// Measured on the H200.
constexpr double kFixedUs = 3.3;                        // start, first bytes, sums, drain
constexpr double kBlockRate = 62, kTallBlockRate = 50;  // GB/s of W that one block takes in; of more than 64 rows
constexpr int kStepsPerSplit = 4;                       // of K, at least
constexpr int kPrefetch = 2;                            // stages
// The next kernel starts late, to load in this one's tail, unless a block has too few steps for a tail to count or,
// alone on its tile, so many that blocks end at different times: then the next one's would crowd where one has ended.
constexpr int kFewSteps = 12, kManySteps = 48;

Schedule schedule(const Problem& p, const DeviceFacts& facts, const Line& line) {
  const Roles roles = sm90_skinny::roles_of(p);
  const bool k_major = roles.w_major == Major::kK, tall = line.tile.bm > 64;
  const int64_t steps = ceil_div(p.k, line.tile.bk), batches = p.batches();
  int64_t tile_rows = line.tile.bm, tiles = ceil_div(roles.rows, tile_rows);
  // A block an SM: the scheduler packs clusters, and two blocks on one SM would leave another without work. Clusters of
  // eight gain only where there is next to nothing else, those of tall tiles hardly at all.
  int splits = 1;
  for (int s : {2, 4, 8}) {
    if (tiles * batches * s > facts.sm_count || steps < s * kStepsPerSplit || (s == 8 && tiles * batches > 8)) break;
    if (tall && s > 2) break;
    splits = s;
  }
  // Lower tiles fill the last wave, at the price of reading x more often.
  if (splits <= 2 && batches == 1 && k_major) {
    const int64_t wave = facts.sm_count / splits, waves = ceil_div(tiles, wave);
    tile_rows = std::clamp(ceil_div(ceil_div(roles.rows, waves * wave), 8) * 8, tile_rows - 56, tile_rows);
    tiles = ceil_div(roles.rows, tile_rows);
  }
  Schedule s{static_cast<int>(tile_rows), splits, static_cast<int>(tiles), 0, true};
  if (batches > 1) return s;
  if (tiles * splits > facts.sm_count) {
    // Blocks that go on to their next tile leave no gap between two; they need the stages for it.
    if (tall || line.tile.bn <= 16) s.blocks = static_cast<int>(ceil_div(tiles, ceil_div(tiles, facts.sm_count)));
    s.prefetch = kPrefetch;
    s.early = !tall;  // beside such a block none of the next kernel finds room anyway
  } else if (steps / splits > kFewSteps && (splits > 1 || steps <= kManySteps)) {
    s.prefetch = kPrefetch;
    s.early = false;
  }
  return s;
}

bool eligible(const Problem& p, const Line& line, Reason* why) {
#ifdef HGEMM_NO_SM90A
  (void)p, (void)line;
  return refuse(why, "%s", "not built: HGEMM_CUDA_ARCHS left out 90a");
#else
  const Roles roles = sm90_skinny::roles_of(p);
  if (!has_short_side(p, line.tile.bn, 30, why)) return false;
  if (p.k == 0) return refuse(why, "K must be positive, got %lld", static_cast<long long>(p.k));
  if (roles.x_major != Major::kK) {
    return refuse(why, "the shorter of A and B (%s) must be contiguous along K", roles.swapped ? "B" : "A");
  }
  if (alignment_a(p) < 16 || alignment_b(p) < 16) {
    return refuse(why, "rows of A and B must start on 16 bytes, got %d and %d", alignment_a(p), alignment_b(p));
  }
  const bool k_major = roles.w_major == Major::kK;
  const int64_t lines = k_major ? roles.rows : p.k;  // of W, as it lies
  if ((lines > 1 && roles.ldw < (k_major ? p.k : roles.rows)) || (roles.cols > 1 && roles.ldx < p.k)) {
    return refuse(why, "%s", "rows of A and B must not overlap");
  }
  return true;
#endif
}

/// Whether the kernels take a problem gated: their tiles are put together from four rows of each half.
bool gates(const Problem& p) {
  const Roles roles = sm90_skinny::roles_of(p);
  return !roles.swapped && roles.w_major == Major::kK && p.n % 16 == 0 && p.batches() == 1 && p.bias == nullptr &&
         p.c.data == nullptr && p.pre_activation == nullptr && p.alpha == 1.0f;
}

/// The bytes at the line's rate, less where too few blocks or too short slices ask for them.
double predict_us(const Problem& p, const DeviceFacts& facts, const Line& line) {
  const Schedule s = schedule(p, facts, line);
  const double blocks = static_cast<double>(s.blocks) * s.splits * static_cast<double>(p.batches());
  const double block_rate = line.tile.bm > 64 ? kTallBlockRate : kBlockRate;
  const double rate = std::min(line.rate * chip_of(facts.cc).dram_gbs / chip_of(90).dram_gbs, blocks * block_rate);
  return kFixedUs + dram_bytes(p) / (rate * 1e3);
}

constexpr Variant gating(Variant v) {
  v.gates = gates;
  return v;
}

using Launcher = Status (*)(const Problem&, const Schedule&, Stream);

template <const Line& kLine, Launcher kF16, Launcher kBF16>
using Functions = ScheduledFunctions<kLine, eligible, predict_us, schedule, kF16, kBF16>;

template <class C>
constexpr Line line_of(double rate) {
  constexpr int kStageBytes = C::PANELS * (C::COLS + C::ROWS) * 128;
  return {{C::ROWS, C::COLS, C::BK, C::kRingBytes / kStageBytes, C::kThreads}, C::kSmemBytes, rate};
}

#define SM90_SKINNY(ROWS, COLS, PANELS, RING, RATE) \
  constexpr Line kLine_##ROWS##x##COLS = line_of<sm90_skinny::Config<ROWS, COLS, PANELS, RING>>(RATE);
#include "kernels/configs_sm90_skinny.inc"
#undef SM90_SKINNY

}  // namespace

const Variant kSm90SkinnyVariants[] = {
#define SM90_SKINNY(ROWS, COLS, PANELS, RING, RATE)                                             \
  gating(half_variant<Functions<kLine_##ROWS##x##COLS, sm90_skinny::launch_f16_##ROWS##x##COLS, \
                                sm90_skinny::launch_bf16_##ROWS##x##COLS>>(                     \
      "skinny_wgmma_" #ROWS "x" #COLS, Family::kSkinny, kHopper, kHopper, kLine_##ROWS##x##COLS)),
#include "kernels/configs_sm90_skinny.inc"
#undef SM90_SKINNY
};
const int kSm90SkinnyVariantCount = static_cast<int>(std::size(kSm90SkinnyVariants));

}  // namespace hgemm
