// The variants of sm90_dmma: which problems each one can run, its schedule, and its predicted time.
#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <tuple>

#include "core/chip.h"
#include "core/cost.h"
#include "core/problem.h"
#include "core/variant_list.h"
#include "kernels/sm90_dmma/config.h"
#include "kernels/sm90_dmma/list.h"
#include "kernels/variants.h"

namespace hgemm {
namespace {

using sm90_dmma::BK;
using sm90_dmma::Schedule;

/// A kernel of list.h as plain values.
struct Line {
  Tile tile;
  int smem_bytes;
  int groups, blocks;  // blocks: per SM
  double share;
};

/// The constants of the predicted times.
struct Costs {
  double clock_ghz;     // under this load
  double fixed_us;      // launch, the first loads, and the drain
  double wave_us;       // for each wave but the last: what other blocks of an SM do not hide of a block's start and end
  double last_us;       // the same for the last wave
  double alone_share;   // the rate of an SM with one of several blocks that fit, as a share of the rate with all
  double step_us;       // least time of a step of a group, which latencies take where an SM has few warps
  double split_us;      // the launch that adds up slices
  double cluster_us;    // the same in a cluster
  double partial_gbs;   // GB/s at which all SMs write, and then read, partial sums
  double stream_share;  // share of the DRAM bandwidth
  double feed_share;    // share of the L2 bandwidth
  double narrow;        // the time of a step if an operand is copied by 4 bytes, against one by 16 bytes
};
// Estimates: the peak rates of the chip, and the constants of other families.
constexpr Costs kCosts = {.clock_ghz = 1.7,
                          .fixed_us = 3.0,
                          .wave_us = 0.4,
                          .last_us = 1.2,
                          .alone_share = 0.6,
                          .step_us = 0.25,
                          .split_us = 2.0,
                          .cluster_us = 1.5,
                          .partial_gbs = 3000,
                          .stream_share = 0.8,
                          .feed_share = 0.8,
                          .narrow = 1.1};

// The predictions are raised by these factors, which leave to other kernels what these were not shown to be faster at.
// Few rows: at most kFewRows rows or columns, which simt_gemv and simt_skinny were made for. Short K: at most kShortK,
// where stores take most of the time.
constexpr int64_t kFewRows = 32, kShortK = 64;
constexpr double kVectorDoubt = 2.0, kFewRowsDoubt = 1.6, kShortDoubt = 1.4, kBatchDoubt = 1.2;

constexpr int kLeastSteps = 4;  // of a group in a slice
constexpr int kMostSlices = 1024, kMostWaves = 2;

/// A schedule and its predicted time in microseconds.
struct Plan {
  Schedule schedule;
  double us;
};

int pitch_of(const Problem& p) {
  return static_cast<int>(ceil_div(p.n, 4) * 4);
}

/// Bytes of the partial sums of one slice.
double slice_bytes(const Problem& p) {
  return 8.0 * static_cast<double>(p.batches()) * static_cast<double>(p.m) * pitch_of(p);
}

int64_t tile_count(const Problem& p, const Line& line) {
  return std::max<int64_t>(ceil_div(p.m, line.tile.bm) * ceil_div(p.n, line.tile.bn) * p.batches(), 1);
}

/// The factor by which a kernel may take longer than plan() says.
double doubt_of(const Problem& p) {
  if (std::min(p.m, p.n) == 1) return kVectorDoubt;
  if (p.batches() > 1) return kBatchDoubt;
  if (p.k <= kShortK) return kShortDoubt;
  return std::min(p.m, p.n) <= kFewRows ? kFewRowsDoubt : 1.0;
}

/// Returns the schedule whose number of slices of K has the shortest predicted time, and that time.
Plan plan(const Problem& p, const DeviceFacts& facts, const Line& line) {
  const Chip& chip = chip_of(facts.cc);
  const Costs& c = kCosts;
  const double sms = std::max(1, facts.sm_count), bytes = slice_bytes(p);
  const int64_t tiles = tile_count(p, line), steps = ceil_div(p.k, BK);
  const int64_t grain = p.a_major() == Major::kK ? 16 : 32;  // rows of the mma that a warp can leave out
  const double rows = static_cast<double>(ceil_div(p.m, grain) * grain);
  const double columns = static_cast<double>(ceil_div(p.n, sm90_dmma::WN) * sm90_dmma::WN);
  // Multiply-adds of a block's step: the mean over all blocks, and the most.
  const double mean = rows * columns * static_cast<double>(p.batches()) / static_cast<double>(tiles) * BK;
  const double most = std::min<double>(line.tile.bm, rows) * std::min<double>(line.tile.bn, columns) * BK;
  const double fetched = 4.0 * BK *
                         static_cast<double>(std::min<int64_t>(line.tile.bm, p.m) +
                                             std::min<int64_t>(line.tile.bn, p.n));  // bytes of a block's step
  const double narrow = alignment_a(p) == 16 && alignment_b(p) == 16 ? 1.0 : c.narrow;
  const double rate = chip.simt_flops / 2 * c.clock_ghz * 1e3 * line.share / narrow;
  const double feed = chip.l2_bytes_per_clk * c.clock_ghz * 1e3 * c.feed_share;
  const double stream = dram_gbs(facts) * 1e3 * c.stream_share;
  const int64_t slots = static_cast<int64_t>(sms) * line.blocks;

  Plan best{{1, false, pitch_of(p)}, std::numeric_limits<double>::infinity()};
  const auto consider = [&](int64_t wanted, bool in_cluster) {
    const double written = in_cluster || wanted == 1 ? 0.0 : bytes * static_cast<double>(wanted);
    if (wanted < 1 || wanted > kMostSlices || written > static_cast<double>(p.most_workspace)) return;
    if (wanted > 1 && (steps < wanted * line.groups * kLeastSteps || tiles * wanted > kMostWaves * slots)) return;
    const double in_slice = static_cast<double>(ceil_div(steps, wanted));
    const int64_t blocks = tiles * wanted, full = blocks / slots, rest = blocks % slots;
    const double resident = static_cast<double>(ceil_div(
        rest, in_cluster ? clusters_at_once(facts, static_cast<int>(wanted)) * wanted : static_cast<int64_t>(sms)));
    const double filled =
        line.blocks == 1 ? 1.0 : c.alone_share + (1 - c.alone_share) * (resident - 1) / (line.blocks - 1);
    const double whole = std::max(line.blocks * mean / rate, line.blocks * fetched / feed);
    const double last = std::max({resident * mean / (rate * filled), most / (rate * filled), resident * fetched / feed,
                                  c.step_us / line.groups});
    double us =
        static_cast<double>(full) * (in_slice * whole + c.wave_us) + (rest > 0 ? in_slice * last : 0.0) + c.last_us;
    us = c.fixed_us + std::max(us, dram_bytes(p) / stream);
    if (in_cluster) {
      us += c.cluster_us;
    } else if (wanted > 1) {
      us += c.split_us + 2 * written / (c.partial_gbs * 1e3);
    }
    if (us < best.us) best = {{static_cast<int>(wanted), in_cluster, pitch_of(p)}, us};
  };
  for (int64_t slices = 1; slices <= 8; ++slices) consider(slices, false);
  for (int64_t waves = 1; waves <= kMostWaves * line.blocks; ++waves) {
    const int64_t slices = static_cast<int64_t>(sms) * waves / tiles;
    if (slices > 8) consider(slices, false);
  }
  for (const int64_t slices : {2, 4, 8}) {
    if (slices <= static_cast<int64_t>(sms)) consider(slices, true);
  }
  return best;
}

bool eligible(const Problem& p, const Line& line, Reason* why) {
  constexpr int64_t kMaxExtent = int64_t{1} << 30;
  if (!is_built_for_sm90a(why)) return false;
  if (p.m > kMaxExtent || p.n > kMaxExtent || p.k > kMaxExtent) {
    return refuse(why, "M, N and K must be at most 2^30, got %lld, %lld and %lld", static_cast<long long>(p.m),
                  static_cast<long long>(p.n), static_cast<long long>(p.k));
  }
  const auto tiles = static_cast<long long>(tile_count(p, line));
  return tiles <= INT32_MAX || refuse(why, "needs %lld blocks, a grid has at most 2^31 - 1", tiles);
}

template <class C>
constexpr Line kLine = {
    .tile = {.bm = C::BM, .bn = C::BN, .bk = BK * C::GROUPS, .stages = C::STAGES, .threads = C::kThreads},
    .smem_bytes = C::kSmemBytes,
    .groups = C::GROUPS,
    .blocks = C::BLOCKS,
    .share = std::get<sm90_dmma::Kernel<C>>(sm90_dmma::kKernels).share,
};

/// The functions of a Variant, bound to one kernel.
template <class C>
struct Functions {
  static bool eligible(const Problem& p, const DeviceFacts&, Reason* why) { return hgemm::eligible(p, kLine<C>, why); }
  static size_t workspace(const Problem& p, const DeviceFacts& facts) {
    const Schedule s = plan(p, facts, kLine<C>).schedule;
    return s.slices == 1 || s.in_cluster ? 0 : static_cast<size_t>(s.slices * slice_bytes(p));
  }
  static double predict_us(const Problem& p, const DeviceFacts& facts) {
    return plan(p, facts, kLine<C>).us * doubt_of(p);
  }
  static Status launch(const Problem& p, const DeviceFacts& facts, void* workspace, Stream stream) {
    return call<&sm90_dmma::launch<C>>(p, plan(p, facts, kLine<C>).schedule, workspace, stream);
  }
};

template <class C>
constexpr Name named() {
  Name name = name_of("sm90_dmma_", C::BM, "x", C::BN);
  if (C::GROUPS > 1) {
    name.append("_groups");
    name.append(C::GROUPS);
  }
  return name;
}
template <class C>
constexpr Name kName = named<C>();

template <class C>
constexpr Variant variant() {
  Variant v = variant_of<Functions<C>>(kName<C>, Family::kSm90Dmma, kFloat32, kLine<C>);
  v.arithmetic = Arithmetic::kAccumulateF64;
  v.min_cc = kHopper;
  v.max_cc = kHopper;
  return v;
}

template <class C>
constexpr auto variants_of(const sm90_dmma::Kernel<C>&) {
  return std::array{variant<C>()};
}

constexpr auto kVariants = variants_of_list(sm90_dmma::kKernels, [](auto kernel) { return variants_of(kernel); });

}  // namespace

const VariantList kSm90DmmaVariants = kVariants;

}  // namespace hgemm
