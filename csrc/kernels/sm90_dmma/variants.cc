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
#include "core/wide_elements.h"
#include "kernels/sm90_dmma/config.h"
#include "kernels/sm90_dmma/list.h"
#include "kernels/variants.h"
#include "tile/triangle.h"

namespace hgemm {
namespace {

using sm90_dmma::BK;
using sm90_dmma::has_chunks_a;
using sm90_dmma::has_chunks_b;
using sm90_dmma::Schedule;

/// A kernel of list.h as plain values.
struct Line {
  Tile tile;
  int smem_bytes;
  int wm, groups, blocks;  // rows of a warp's part of the tile; groups of warps; blocks per SM
  double share;
};

/// The constants of the predicted times.
struct Costs {
  double clock_ghz;          // under this load
  double fixed_us;           // launch, the first loads, and the drain
  double wave_us;            // a block's start and end, for each wave but the last
  double resident_us;        // the same in the last wave, for each block of an SM but one
  double latency_us;         // of a group's step beyond its mma: waits, loads from shared memory, conversions
  double narrow_us;          // an SM's time for 1,000 elements that are copied by 4 bytes
  double narrow_latency_us;  // what they add to the latency
  double merge_us;           // adding up the sums of one more group
  double split_us;           // the launch that adds up slices
  double cluster_us;         // the same in a cluster
  double partial_gbs;        // GB/s at which all SMs write, and then read, partial sums
  double stream_share;       // share of the DRAM bandwidth
  double triangle_us;        // of x @ x.T, to find the tiles and to store results twice
};
// Fitted to 853 times of 194 shapes on an H200, at which the mean error was 9 %. The kernels have become faster since,
// by a tenth to a quarter. The learned model corrects these predictions.
constexpr Costs kCosts = {.clock_ghz = 1.7,
                          .fixed_us = 2.4,
                          .wave_us = 1.69,
                          .resident_us = 0.502,
                          .latency_us = 0.386,
                          .narrow_us = 0.0318,
                          .narrow_latency_us = 0.125,
                          .merge_us = 0.399,
                          .split_us = 2.6,
                          .cluster_us = 3.08,
                          .partial_gbs = 5300,
                          .stream_share = 0.601,
                          .triangle_us = 0.5};

// Kernels for vectors are faster, and the learned model, which corrects these predictions, does not know vectors.
constexpr double kVectorDoubt = 2.0;

constexpr int kLeastSteps = 4;  // of a group in a slice
constexpr int kMostSlices = 1024, kMostWaves = 2;
constexpr int kMostBlocks = 3;  // of any kernel, on an SM

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

/// The tiles of D.
int64_t all_tiles(const Problem& p, const Line& line) {
  return std::max<int64_t>(ceil_div(p.m, line.tile.bm) * ceil_div(p.n, line.tile.bn) * p.batches(), 1);
}

/// Those that touch the upper triangle.
int64_t tiles_of_triangle(const Problem& p, const Line& line) {
  return std::max<int64_t>(tile::tiles_of_triangle(p.n, line.tile.bm, line.tile.bn) * p.batches(), 1);
}

/// The cube root of a number from 1 to 2, off by at most a few units in the last place. The line is off by less than
/// 1 %, and each of Halley's steps leaves the cube of an error. With std::cbrt, which takes four times as many
/// instructions, a decision on float32 operands takes 0.6 us longer.
double cube_root(double x) {
  double root = 1.0074 + 0.2599 * (x - 1);
  for (int i = 0; i < 2; ++i) {
    const double cube = root * root * root;
    root *= (cube + 2 * x) / (2 * cube + x);
  }
  return root;
}

/// The cube root of the sum of the cubes of two positive numbers: a maximum that is smooth where they are close to each
/// other, so that neither hides the other fully.
double smooth_max(double x, double y) {
  const double longer = std::max(x, y), ratio = std::min(x, y) / longer;
  return longer * cube_root(1 + ratio * ratio * ratio);
}

/// The predicted microseconds of a step of one kernel: of as many k-tiles as an SM has resident groups.
class StepTime {
 public:
  StepTime(const Problem& p, const DeviceFacts& facts, const Line& line)
      : groups_(line.groups),
        warps_(ceil_div(std::min<int64_t>(line.tile.bm, p.m), line.wm) *
               ceil_div(std::min<int64_t>(line.tile.bn, p.n), sm90_dmma::WN)) {
    const Chip& chip = chip_of(facts.cc);
    const double rate = chip.simt_flops / 2 * kCosts.clock_ghz * 1e3 * line.share;  // multiply-adds per us and SM
    const int64_t grain = p.a_major() == Major::kK ? 16 : 32;  // rows of the mma that a warp can leave out
    const int64_t rows = ceil_div(p.m, grain) * grain, columns = ceil_div(p.n, sm90_dmma::WN) * sm90_dmma::WN;
    const double results = static_cast<double>(rows) * static_cast<double>(columns * p.batches());
    block_us_ = results / static_cast<double>(all_tiles(p, line)) * BK / rate;
    warp_us_ = static_cast<double>(std::min<int64_t>(line.wm, rows)) * sm90_dmma::WN * BK * kTensorCores / rate;
    const double narrow =  // thousands of elements
        BK * 1e-3 *
        static_cast<double>((has_chunks_a(p) ? 0 : std::min<int64_t>(line.tile.bm, p.m)) +
                            (has_chunks_b(p) ? 0 : std::min<int64_t>(line.tile.bn, p.n)));
    narrow_us_ = kCosts.narrow_us * narrow;
    latency_us_ = warp_us_ + kCosts.latency_us + kCosts.narrow_latency_us * narrow;
  }

  /// With so many blocks on an SM. A warp stays on one tensor core, so few warps may leave some idle.
  double of(int64_t blocks) const {
    const int64_t groups = blocks * groups_;
    const double busiest = static_cast<double>(ceil_div(groups * warps_, kTensorCores)) * warp_us_;
    const double all = static_cast<double>(groups);
    return smooth_max(std::max(busiest, all * block_us_) + all * narrow_us_, latency_us_);
  }

 private:
  static constexpr int kTensorCores = 4;
  int64_t groups_, warps_;                              // of a block; warps with work, of a group
  double block_us_, warp_us_, narrow_us_, latency_us_;  // block_us_: the mean over all blocks
};

/// The schedule whose number of slices of K has the shortest predicted time, and that time, of a kernel that computes
/// so many tiles.
Plan plan_slices(const Problem& p, const DeviceFacts& facts, const Line& line, int64_t tiles, bool is_triangle) {
  const Costs& c = kCosts;
  const int64_t sms = std::max(1, facts.sm_count), slots = sms * line.blocks;
  const double bytes = slice_bytes(p), stream = dram_gbs(facts) * 1e3 * c.stream_share;
  const int64_t steps = ceil_div(p.k, BK);
  const int64_t most =
      std::min({int64_t{kMostSlices}, steps / (line.groups * kLeastSteps), kMostWaves * slots / tiles});
  const StepTime step(p, facts, line);
  const double merge = c.merge_us * (line.groups - 1), memory_us = dram_bytes(p) / stream;
  double step_us[kMostBlocks + 1];  // by the number of blocks on an SM
  for (int blocks = 1; blocks <= line.blocks; ++blocks) step_us[blocks] = step.of(blocks);
  const double whole = step_us[line.blocks];

  Plan best{{1, false, pitch_of(p), is_triangle}, std::numeric_limits<double>::infinity()};
  const auto consider = [&](int64_t slices, bool in_cluster) {
    const double written = in_cluster || slices == 1 ? 0.0 : bytes * static_cast<double>(slices);
    if (slices > std::max<int64_t>(most, 1) || written > static_cast<double>(p.most_workspace)) return;
    const double in_group = static_cast<double>(ceil_div(ceil_div(steps, slices), line.groups));
    // Not every SM can have a block of a cluster.
    const int64_t clusters = in_cluster ? std::max(clusters_at_once(facts, static_cast<int>(slices)), 1) : 0;
    const int64_t used = in_cluster ? clusters * slices : sms;
    const int64_t at_once = used * line.blocks;
    const int64_t blocks = tiles * slices, full = blocks / at_once, rest = blocks % at_once;
    double us = static_cast<double>(full) * (in_group * whole + c.wave_us + merge);
    if (rest > 0) {
      const int64_t resident = ceil_div(rest, used);
      us += in_group * step_us[resident] + c.resident_us * static_cast<double>(resident - 1) + merge;
    }
    const double sums_us = in_cluster   ? c.cluster_us
                           : slices > 1 ? c.split_us + 2 * written / (c.partial_gbs * 1e3)
                                        : 0;
    const double fixed_us = c.fixed_us + sums_us + (is_triangle ? c.triangle_us : 0);
    // A smooth maximum is no less than a maximum, which saves most schedules a cube root.
    if (fixed_us + std::max(us, memory_us) >= best.us) return;
    us = fixed_us + smooth_max(us, memory_us);
    if (us < best.us) best = {{static_cast<int>(slices), in_cluster, pitch_of(p), is_triangle}, us};
  };
  for (int64_t slices = 1; slices <= 8; ++slices) consider(slices, false);
  for (int64_t waves = 1; waves <= kMostWaves * line.blocks; ++waves) {
    const int64_t slices = std::min(sms * waves / tiles, most);
    if (slices > 8) consider(slices, false);
  }
  for (const int64_t slices : {2, 4, 8}) {
    if (slices <= sms) consider(slices, true);
  }
  return best;
}

/// The schedule with the shortest predicted time. Where x @ x.T has so few tiles that its triangle saves no wave, that
/// is one of all of D.
Plan plan(const Problem& p, const DeviceFacts& facts, const Line& line) {
  const Plan whole = plan_slices(p, facts, line, all_tiles(p, line), false);
  if (!sm90_dmma::may_mirror(p)) return whole;
  const Plan triangle = plan_slices(p, facts, line, tiles_of_triangle(p, line), true);
  return triangle.us < whole.us ? triangle : whole;
}

bool eligible(const Problem& p, const DeviceFacts& facts, const Line& line, Reason* why) {
  if (!is_built_for_sm90a(why)) return false;
  if (facts.slow_float64) return refuse(why, "%s", "needs float64 tensor cores at an H100's rate");
  if (p.dtype == DType::kF64 && !takes_wide(p, why)) return false;
  if (!has_countable_extents(p, why)) return false;
  const auto tiles = static_cast<long long>(all_tiles(p, line));
  return tiles <= INT32_MAX || refuse(why, "needs %lld blocks, a grid has at most 2^31 - 1", tiles);
}

template <class C>
constexpr Line kLine = {
    .tile = {.bm = C::BM, .bn = C::BN, .bk = BK * C::GROUPS, .stages = C::STAGES, .threads = C::kThreads},
    .smem_bytes = C::kSmemBytes,
    .wm = C::WM,
    .groups = C::GROUPS,
    .blocks = C::BLOCKS,
    .share = std::get<sm90_dmma::Kernel<C>>(sm90_dmma::kKernels).share,
};

/// The functions of a Variant, bound to one kernel.
template <class C>
struct Functions {
  static_assert(C::BLOCKS <= kMostBlocks);

  static bool eligible(const Problem& p, const DeviceFacts& facts, Reason* why) {
    return hgemm::eligible(p, facts, kLine<C>, why);
  }
  static size_t workspace(const Problem& p, const DeviceFacts& facts) {
    const Schedule s = plan(p, facts, kLine<C>).schedule;
    return s.slices == 1 || s.in_cluster ? 0 : static_cast<size_t>(s.slices * slice_bytes(p));
  }
  static double predict_us(const Problem& p, const DeviceFacts& facts) {
    return plan(p, facts, kLine<C>).us * (std::min(p.m, p.n) == 1 ? kVectorDoubt : 1.0);
  }
  static Status launch(const Problem& p, const DeviceFacts& facts, void* workspace, Stream stream) {
    return call<&sm90_dmma::launch<C>>(p, plan(p, facts, kLine<C>).schedule, workspace, stream);
  }
};

template <class C>
constexpr Name named() {
  Name name = name_of(sizeof(typename C::T) == 8 ? "sm90_dmma_f64_" : "sm90_dmma_", C::BM, "x", C::BN);
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
  constexpr uint32_t kDtypes = sizeof(typename C::T) == 8 ? kFloat64 : kFloat32;
  Variant v = variant_of<Functions<C>>(kName<C>, Family::kSm90Dmma, kDtypes, kLine<C>);
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
