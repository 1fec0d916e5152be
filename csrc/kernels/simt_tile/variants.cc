// The variants of simt_tile: which problems each one can run, its schedule, and its predicted time.
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
  int blocks;      // per SM, as limited by registers
  bool divides_k;  // the warps of a block divide the k of a stage
};

constexpr int64_t kMaxExtent = int64_t{1} << 30;
/// Of M, N or K. The family is for the products that cuBLAS computes slowly, and large ones are not among these.
constexpr int64_t kMostOfOne = 1024;
constexpr int64_t kMaxSlices = 1024;
/// The most bytes of partial sums. More would be read and written at the rate of the memory.
constexpr int64_t kMostPartialBytes = int64_t{32} << 20;

// Fitted to times of the H200 (NOTES.md), most of them within 10 %: microseconds, and microseconds for a GFLOP of whole
// k-tiles, a megabyte of operands and results, a k of a slice with two blocks on an SM, and a megabyte of partial sums.
constexpr double kFixedUs = 3.0, kFlopUs = 23.4, kByteUs = 0.168;
constexpr double kSlicedUs = 4.7, kSliceKUs = 0.0575, kSlicedByteUs = 0.156, kPartialUs = 0.42;
constexpr double kBothKMajor = 1.12;  // both operands are transposed on the way to shared memory
// Other products were timed as well, and torch is about as fast or faster: these are left to it.
constexpr double kSlower = 1.5;
constexpr double kUntimed = 3.0;  // the same on chips of which no times are known
constexpr int64_t kShortK = 128, kLeastOfShort = 256, kLeastResults = 3000000;
constexpr int64_t kLongK = 4096, kMostOfLong = 512;

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

/// Products with few k and many results, whose rows are all aligned.
bool is_short(const Problem& p) {
  return p.k <= kShortK && std::min(p.m, p.n) >= kLeastOfShort && p.m * p.n * p.batches() >= kLeastResults &&
         alignments_of(p).all_whole();
}

/// Products with many k and few results.
bool is_long(const Problem& p) {
  return p.k >= kLongK && std::max(p.m, p.n) <= kMostOfLong && p.batches() == 1;
}

double time_of(const Problem& p, const DeviceFacts& facts, const Line& line, const Schedule& s) {
  const Chip &chip = chip_of(facts.cc), &timed = chip_of(90);
  const double sm_speed = chip.clock_ghz * chip.simt_flops / (timed.clock_ghz * timed.simt_flops);
  const double speed = sm_speed * facts.sm_count / timed.facts.sm_count;
  const double known = is_measured(facts.cc) ? 1.0 : kUntimed, slower = kSlower * known;
  const double megabytes = dram_bytes(p) / 1e6 / dram_share(facts);
  const double units = static_cast<double>(units_of(p, line)), tile = static_cast<double>(line.tile.bm) * line.tile.bn;
  if (s.slices == 1) {
    const double gflops = 2e-9 * units * tile * s.slice_k;
    const double us = kFixedUs + kFlopUs * gflops / speed + kByteUs * megabytes;
    return is_short(p) && !line.divides_k ? known * us : slower * us;
  }
  const double per_sm = std::ceil(units * s.slices / facts.sm_count), partial = 4e-6 * units * s.slices * tile;
  double us = kSliceKUs * s.slice_k * std::max(1.0, per_sm / 2) * (line.divides_k ? 1 : 4) / sm_speed;
  if (p.a_major() == Major::kK && p.b_major() == Major::kK) us *= kBothKMajor;
  us += kSlicedUs + kSlicedByteUs * megabytes + kPartialUs * partial;
  return is_long(p) && line.divides_k ? known * us : slower * us;
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
  static double predict_us(const Problem& p, const DeviceFacts& facts) { return plan(p, facts, kLine).us; }
  static Status launch(const Problem& p, const DeviceFacts& facts, void* workspace, Stream stream) {
    return call<kLaunch>(p, plan(p, facts, kLine).schedule, workspace, stream);
  }
};

template <class C>
constexpr Line kLine = {
    .tile = {C::BM, C::BN, C::BK, C::STAGES, C::kThreads},
    .smem_bytes = C::kSmemBytes,
    .blocks = C::BLOCKS,
    .divides_k = C::WK > 1,
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
