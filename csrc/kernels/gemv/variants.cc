// The variants of gemv: which problems each one can run, its schedule, and its predicted time.
#include <algorithm>
#include <array>
#include <cstdint>
#include <tuple>

#include "core/chip.h"
#include "core/cost.h"
#include "core/problem.h"
#include "core/variant_list.h"
#include "kernels/gemv/config.h"
#include "kernels/gemv/list.h"
#include "kernels/variants.h"

namespace hgemm {
namespace {

using gemv::Schedule;

/// A kernel of list.h as plain values.
struct Line {
  Tile tile;  // bm: rows of W that a warp takes at a time, at least; bn: rows of x; bk: k of x in shared memory
  int smem_bytes;
  int sum_floats;
  double rate_k, rate_mn;
};

// From a sweep on the H200 (NOTES.md).
constexpr double kFixedUs = 3.5;   // launch, x, first loads, sums, drain
constexpr double kSplitUs = 1.5;   // sums through the workspace
constexpr double kBlockRate = 40;  // GB/s that one block reads
constexpr double kBlockUs = 1.5;   // a block with almost nothing to read
constexpr int kBlocksPerSm = 4;
// The shares of the aligned rates that are reached with an unaligned W. In an MN-major W, a warp's rows begin anywhere
// in a 128-byte line.
constexpr double kNarrowRateK = 0.7;
constexpr double kNarrowRateMN = 0.65;
// From this K on, batches of an unaligned MN-major W reach the aligned rate.
constexpr int64_t kLongBatchK = 64;
constexpr int kMaxPasses = 16;
constexpr int kFewSlices = 8;  // more slices only where SMs would otherwise be idle

/// Divides K into slices of whole units (of `unit` k), at most line.tile.bk each: `wanted` slices if each then has two
/// units or more, else fewer.
void slice(Schedule* s, int64_t k, int unit, int64_t wanted, const Line& line) {
  const int64_t most = line.tile.bk / unit * unit, units = std::max<int64_t>(ceil_div(k, unit), 1);
  wanted = std::clamp<int64_t>(wanted, 1, std::max<int64_t>(units / 2, 1));
  s->slice_k = static_cast<int>(std::min<int64_t>(ceil_div(units, wanted) * unit, most));
  s->slices = static_cast<int>(std::max<int64_t>(ceil_div(k, s->slice_k), 1));
}

Schedule schedule(const Problem& p, const DeviceFacts& facts, const Line& line) {
  const ShortSide sides = short_side_of(p);
  const int64_t batches = p.batches(), sms = facts.sm_count;
  const int64_t wanted = sms * 15 / 8;  // blocks: almost two per SM
  Schedule s{};
  s.dependent = has_dependent_launch(facts.cc);
  s.releases_early = true;
  if (sides.w_major == Major::kK) {
    const int step = sides.wide ? 1 : 8;  // between the rows of a tile
    const int64_t k = p.k + (sides.wide ? 0 : 7);
    s.lanes = 4;
    while (s.lanes < 32 && s.lanes * 8 < k) s.lanes *= 2;
    const auto tiles_of = [&](int rows) { return ceil_div(sides.rows, step * rows) * step; };
    const auto cut = [&](int warps, int passes) {
      s.warps = warps;
      s.passes = passes;
      s.tile_rows = passes * gemv::kLoads * (32 / s.lanes) * (gemv::kWarps / warps);
      s.tiles = tiles_of(s.tile_rows);
    };
    cut(1, 1);
    while (s.warps < gemv::kWarps && s.tiles * batches < wanted && s.warps * s.lanes * 16 <= k) cut(2 * s.warps, 1);
    while (s.passes < kMaxPasses && step * s.tile_rows < sides.rows &&
           2 * s.tile_rows * s.warps * line.tile.bn <= line.sum_floats &&
           tiles_of(2 * s.tile_rows) * batches >= wanted) {
      cut(s.warps, 2 * s.passes);
    }
    // A tile that all warps share is small. Slicing its K gains only where SMs would otherwise be idle.
    slice(&s, k, gemv::unit_k(true, s.lanes, s.warps), 2 * s.tiles * batches > sms ? 1 : sms / (s.tiles * batches),
          line);
  } else {
    const auto cut = [&](int lanes) {
      s.lanes = lanes;
      s.tile_rows = 8 * lanes - (sides.wide ? 0 : 8);  // unaligned: chunks begin up to seven rows earlier
      s.tiles = ceil_div(sides.rows, s.tile_rows);
    };
    s.warps = s.passes = 1;
    cut(32);
    while (s.lanes > 8 && 2 * s.tiles * batches < 7 * sms) cut(s.lanes / 2);
    const int64_t tiles = std::max<int64_t>(s.tiles * batches, 1);
    const int64_t slices = ceil_div(wanted, tiles);
    slice(&s, p.k, gemv::unit_k(false, s.lanes, 1),
          slices > kFewSlices ? std::max<int64_t>(kFewSlices, sms / tiles) : slices, line);
  }
  return s;
}

bool eligible(const Problem& p, const Line& line, Reason* why) {
  return has_short_side(p, line.tile.bn, 28, why);
}

/// Returns the time to read and write the bytes at the kernel's rate, or at a lower rate where there are too few blocks
/// to reach it. It is at least the time of the blocks, one wave after the other. In batches, whose K is often short,
/// the lanes that find no k in the last round of loads along K count as if they read.
double predict_us(const Problem& p, const DeviceFacts& facts, const Line& line) {
  const Schedule s = schedule(p, facts, line);
  const ShortSide sides = short_side_of(p);
  const bool k_major = sides.w_major == Major::kK, is_batch = p.batches() > 1;
  const double blocks = static_cast<double>(s.tiles) * s.slices * static_cast<double>(p.batches());
  const double narrow_rate = k_major ? kNarrowRateK : is_batch && p.k >= kLongBatchK ? 1.0 : kNarrowRateMN;
  const double share = dram_share(facts) * (sides.wide ? 1.0 : narrow_rate);
  const int64_t round_k = 8 * s.lanes * s.warps, k = std::max<int64_t>(p.k + (sides.wide ? 0 : 7), 1);
  const double padding = is_batch && k_major ? static_cast<double>(ceil_div(k, round_k) * round_k) / k : 1.0;
  const double stream_us =
      padding * dram_bytes(p) / (std::min((k_major ? line.rate_k : line.rate_mn) * share, blocks * kBlockRate) * 1e3);
  const double blocks_us = kBlockUs * blocks / (facts.sm_count * kBlocksPerSm);
  return kFixedUs + (s.slices > 1 ? kSplitUs : 0.0) + std::max(stream_us, blocks_us);
}

template <class C>
constexpr Line kLine = {
    .tile = {.bm = gemv::kLoads, .bn = C::COLS, .bk = C::kSlice, .stages = C::kDepthK, .threads = gemv::kThreads},
    .smem_bytes = C::kSmemBytes,
    .sum_floats = C::kSumFloats,
    .rate_k = std::get<gemv::Kernel<C>>(gemv::kKernels).rate_k,
    .rate_mn = std::get<gemv::Kernel<C>>(gemv::kKernels).rate_mn,
};

template <class C>
using Functions = SlicedFunctions<kLine<C>, eligible, predict_us, schedule, &gemv::launch<C, DType::kF16>,
                                  &gemv::launch<C, DType::kBF16>>;

template <class C>
constexpr Name kName = name_of("gemv_m", C::COLS);

template <class C>
constexpr auto variants_of(const gemv::Kernel<C>&) {
  return std::array{variant_of<Functions<C>>(kName<C>, Family::kGemv, kHalfTypes, kLine<C>)};
}

constexpr auto kVariants = variants_of_list(gemv::kKernels, [](auto kernel) { return variants_of(kernel); });

}  // namespace

const VariantList kGemvVariants = kVariants;

}  // namespace hgemm
