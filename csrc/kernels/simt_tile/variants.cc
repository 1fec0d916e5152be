// The variants of simt_tile: which problems each one can run, its schedule, and its predicted time.
#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <tuple>

#include "core/chip.h"
#include "core/cost.h"
#include "core/problem.h"
#include "core/variant_list.h"
#include "kernels/simt_tile/config.h"
#include "kernels/simt_tile/list.h"
#include "kernels/variants.h"

namespace hgemm {
namespace {

using simt_tile::Schedule;

/// A kernel of list.h as plain values.
struct Line {
  Tile tile;
  int smem_bytes;
  int warp_m, warp_n;  // the part of the tile that a warp computes
  int blocks;          // per SM, as limited by registers
  double share, alone;
};

constexpr int64_t kMaxExtent = int64_t{1} << 30;
/// Of M, N or K. The family is for the products that cuBLAS computes slowly, and large ones are not among these.
constexpr int64_t kMostOfOne = 1024;
constexpr int64_t kMaxSlices = 1024;
/// The most bytes of partial sums. More would be read and written at the rate of the memory.
constexpr int64_t kMostPartialBytes = int64_t{32} << 20;

constexpr double kDoubt = 1.5;
constexpr double kFixedUs = 2.5;  // launch, first loads, drain
constexpr double kBlockUs = 0.5;  // of an SM for each block: prologue and epilogue, as far as others do not hide them
constexpr double kStreamShare = 0.8;  // share of the read bandwidth that the kernels reach
constexpr double kSumUs = 2.5;        // of the second kernel, which adds up slices
constexpr double kNarrowShare = 0.8;  // share of the rate with 4-byte copies

/// A schedule and its predicted time in microseconds.
struct Plan {
  Schedule schedule;
  double us;
};

int64_t units_of(const Problem& p, const Line& line) {
  return ceil_div(p.m, line.tile.bm) * ceil_div(p.n, line.tile.bn) * p.batches();
}

int64_t resident(const DeviceFacts& facts, const Line& line) {
  return std::clamp<int64_t>(facts.smem_per_sm / (line.smem_bytes + 1024), 1, line.blocks);
}

/// The schedule with this many slices, or fewer.
Schedule cut(const Problem& p, const DeviceFacts& facts, const Line& line, int64_t slices) {
  const int64_t steps = std::max<int64_t>(ceil_div(p.k, line.tile.bk), 1), in_slice = ceil_div(steps, slices);
  return {
      .tiles_m = static_cast<int>(ceil_div(p.m, line.tile.bm)),
      .tiles_n = static_cast<int>(ceil_div(p.n, line.tile.bn)),
      .slices = static_cast<int>(ceil_div(steps, in_slice)),
      .slice_k = static_cast<int>(in_slice * line.tile.bk),
      .resident = static_cast<int>(facts.sm_count * resident(facts, line)),
      .dependent = has_dependent_launch(facts.cc),
  };
}

double time_of(const Problem& p, const DeviceFacts& facts, const Line& line, const Schedule& s) {
  const Chip& chip = chip_of(facts.cc);
  const double sms = facts.sm_count, clk_per_us = chip.clock_ghz * 1e3;
  const double blocks = static_cast<double>(units_of(p, line)) * s.slices;
  const double per_sm = std::max(1.0, static_cast<double>(ceil_div(units_of(p, line) * s.slices, facts.sm_count)));
  const double most = static_cast<double>(resident(facts, line)), at_once = std::min(per_sm, most);
  // Warps whose results all lie beyond D compute nothing.
  const double rows = static_cast<double>(ceil_div(p.m, line.warp_m) * line.warp_m);
  const double cols = static_cast<double>(ceil_div(p.n, line.warp_n) * line.warp_n);
  const double flops = 2.0 * rows * cols * static_cast<double>(p.batches()) / blocks * s.slices * s.slice_k;
  const double full = line.share,
               share = most == 1 ? full : line.alone + (full - line.alone) * (at_once - 1) / (most - 1);
  const bool is_narrow = alignment_a(p) < 16 || alignment_b(p) < 16;
  const double rate = chip.simt_flops * clk_per_us * share * (is_narrow ? kNarrowShare : 1.0);
  const double compute_us = per_sm * (flops / rate + kBlockUs);
  const double memory_us = dram_bytes(p) / (dram_gbs(facts) * 1e3 * kStreamShare);
  double us = kFixedUs + std::max(compute_us, memory_us);
  if (s.slices > 1) {
    const double partial = 8.0 * blocks * line.tile.bm * line.tile.bn;
    us += kSumUs + partial / (chip.l2_bytes_per_clk * clk_per_us * sms);
  }
  return us;
}

/// Divides K where that fills the device, as far as the workspace goes. A caller who wants sums in K's order gets one
/// slice.
Plan plan(const Problem& p, const DeviceFacts& facts, const Line& line) {
  Schedule s = cut(p, facts, line, 1);
  Plan best{s, time_of(p, facts, line, s)};
  if (p.numerics != NumericsMode::kFast || s.slice_k <= line.tile.bk) return best;
  const int64_t units = units_of(p, line), bytes = 4 * units * line.tile.bm * line.tile.bn;
  const int64_t most = std::min(kMaxSlices, std::min(kMostPartialBytes, p.most_workspace) / bytes);
  int64_t last = 1;
  for (int64_t at_once = 1; at_once <= resident(facts, line); ++at_once) {
    const int64_t wanted = std::min(most, facts.sm_count * at_once / units);
    if (wanted <= last) continue;
    last = wanted;
    s = cut(p, facts, line, wanted);
    const double us = time_of(p, facts, line, s);
    if (us < best.us) best = {s, us};
  }
  return best;
}

bool eligible(const Problem& p, const Line& line, Reason* why) {
  if (p.m > kMaxExtent || p.n > kMaxExtent || p.k > kMaxExtent) {
    return refuse(why, "M, N and K must be at most 2^30, got %lld, %lld and %lld", static_cast<long long>(p.m),
                  static_cast<long long>(p.n), static_cast<long long>(p.k));
  }
  if (std::min({p.m, p.n, p.k}) > kMostOfOne) {
    return refuse(why, "M, N or K must be at most %lld, got %lld, %lld and %lld", static_cast<long long>(kMostOfOne),
                  static_cast<long long>(p.m), static_cast<long long>(p.n), static_cast<long long>(p.k));
  }
  if (static_cast<double>(ceil_div(p.m, line.tile.bm)) * static_cast<double>(ceil_div(p.n, line.tile.bn)) *
          static_cast<double>(p.batches()) >
      INT32_MAX) {
    return refuse(why, "there must be at most 2^31 - 1 tiles of %dx%d", line.tile.bm, line.tile.bn);
  }
  return true;
}

size_t workspace(const Problem& p, const DeviceFacts& facts, const Line& line) {
  const int slices = plan(p, facts, line).schedule.slices;
  return slices == 1 ? 0
                     : sizeof(float) * slices * static_cast<size_t>(units_of(p, line)) * line.tile.bm * line.tile.bn;
}

template <const auto& kLine, auto kLaunch>
struct Functions {
  static bool eligible(const Problem& p, const DeviceFacts&, Reason* why) { return hgemm::eligible(p, kLine, why); }
  static size_t workspace(const Problem& p, const DeviceFacts& facts) { return hgemm::workspace(p, facts, kLine); }
  static double predict_us(const Problem& p, const DeviceFacts& facts) { return kDoubt * plan(p, facts, kLine).us; }
  static Status launch(const Problem& p, const DeviceFacts& facts, void* workspace, Stream stream) {
    return call<kLaunch>(p, plan(p, facts, kLine).schedule, workspace, stream);
  }
};

template <class C>
constexpr Line kLine = {
    .tile = {C::BM, C::BN, C::BK, C::STAGES, C::kThreads},
    .smem_bytes = C::kSmemBytes,
    .warp_m = C::WM,
    .warp_n = C::WN,
    .blocks = C::BLOCKS,
    .share = std::get<simt_tile::Kernel<C>>(simt_tile::kKernels).share,
    .alone = std::get<simt_tile::Kernel<C>>(simt_tile::kKernels).alone,
};

template <class C>
constexpr Name name() {
  return C::WK == 1 ? name_of("simt_tile_", C::BM, "x", C::BN, "x", C::BK)
                    : name_of("simt_tile_", C::BM, "x", C::BN, "x", C::BK, "_w", C::WK);
}
template <class C>
constexpr Name kName = name<C>();

template <class C>
constexpr auto variants_of(const simt_tile::Kernel<C>&) {
  Variant v = variant_of<Functions<kLine<C>, &simt_tile::launch<C>>>(kName<C>, Family::kSimtTile, kFloat32, kLine<C>);
  if (C::WK == 1) v.sums = Sums::kChain;
  return std::array{v};
}

constexpr auto kVariants = variants_of_list(simt_tile::kKernels, [](auto kernel) { return variants_of(kernel); });

}  // namespace

const VariantList kSimtTileVariants = kVariants;

}  // namespace hgemm
