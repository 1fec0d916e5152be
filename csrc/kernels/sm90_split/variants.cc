// The variants of sm90_split: which problems each one takes, its schedule, and its predicted time.
#include <algorithm>
#include <array>
#include <cstdint>
#include <tuple>
#include <utility>

#include "core/chip.h"
#include "core/cost.h"
#include "core/problem.h"
#include "core/variant_list.h"
#include "kernels/sm90_split/config.h"
#include "kernels/sm90_split/list.h"
#include "kernels/variants.h"
#include "tile/slabs.h"
#include "tile/split_fallback.h"
#include "tile/split_planes.h"
#include "tile/triangle.h"

namespace hgemm {
namespace {

using sm90_split::Schedule;

// Fitted to 168 timings on an H200. The predictions are 3.8 % off (root mean square).
constexpr double kStartUs = 2.5;       // both launches, first barriers, first stages
constexpr double kBatchUs = 4.0;       // more in a batch, for both launches together
constexpr double kSplitShare = 0.90;   // share of the read bandwidth that making three planes reaches
constexpr double kScaledShare = 0.60;  // the same of two planes, from 2048 x 2048 on, in all memory orders
constexpr double kColumnUs = 0.027;    // per column of a tile: the last wait, the epilogue, the stores
constexpr double kPartUs = 9.0;        // per wave of slices: a new start, the sums to the workspace
constexpr double kSumUs = 2.0;         // per slice: what the last block of a tile reads
constexpr double kSumBytes = 12;       // per element of D: to add a part of K to it, by the general epilogue
constexpr int kLeastSteps = 8;         // stages of a slice, at least
constexpr int kMostSlices = 16;

/// The parameters of a kernel of list.h, as run-time values.
struct Line {
  Tile tile;
  int smem_bytes;
  int cm, planes;
  double rate;

  bool scales() const { return planes == tile::split::kTwoPlanes; }
  /// The share of the read bandwidth that making the planes reaches.
  double pass_share() const { return scales() ? kScaledShare : kSplitShare; }
  /// Pairs of planes that are multiplied.
  int products() const { return scales() ? 3 : 6; }
  tile::split::PlanesBytes bytes(bool shares) const { return tile::split::PlanesBytes(shares, planes); }
};

constexpr Schedule kOneSlice{0, 1, 0, 0};
constexpr size_t kMostExtraBytes = size_t{32} << 20;  // of partial sums, so that planes keep most of the workspace

/// Bytes of the workspace behind the planes.
size_t extra_bytes(const Schedule& s, const Line& line) {
  return s.sums_bytes(line.tile) + sizeof(unsigned) * s.counters();
}

struct Plan {
  Schedule schedule;
  double gemm_us;
};

/// The number of slices of K with the least predicted time, and that time. The number depends on M, N and the GPU, and
/// a row's bits on the number. So K is not sliced in batch-invariant numerics.
Plan plan(const Problem& p, const DeviceFacts& facts, const Line& line, int most_slices = kMostSlices) {
  const Chip& chip = chip_of(facts.cc);
  const Tile& t = line.tile;
  const int64_t tile_m = int64_t{t.bm} * line.cm;
  const int64_t of_matrix = tile::split::is_triangle(p) ? tile::tiles_of_triangle(p.n, tile_m, t.bn)
                                                        : ceil_div(p.m, tile_m) * ceil_div(p.n, int64_t{t.bn});
  const int64_t units = of_matrix * p.batches();
  const int64_t at_once = std::max(1, facts.sm_count / line.cm), steps = ceil_div(p.k, int64_t{t.bk});
  const int64_t rest = units % at_once;
  const double step_clk = 2.0 * line.products() * t.bm * t.bn * t.bk / (line.rate * chip.peak_flops);
  const double step_us = step_clk / (chip.clock_ghz * 1e3), end_us = kColumnUs * t.bn;
  const double wave_us = static_cast<double>(steps) * step_us + end_us;
  const double whole_us = static_cast<double>(units / at_once) * wave_us;
  Plan best{kOneSlice, whole_us + (rest > 0 ? wave_us : 0.0)};
  if (p.numerics != NumericsMode::kFast || std::min(p.m, p.n) == 1 || p.batches() > 1) return best;
  for (int wanted = 2; rest > 0 && wanted <= most_slices && wanted * kLeastSteps <= steps; ++wanted) {
    const int64_t in_slice = ceil_div(steps, wanted), slices = ceil_div(steps, in_slice);
    const double waves = static_cast<double>(ceil_div(rest * slices, at_once));
    const double us = whole_us + waves * (static_cast<double>(in_slice) * step_us + end_us + kPartUs) +
                      static_cast<double>(slices) * kSumUs;
    const Schedule schedule{static_cast<int>(rest), static_cast<int>(slices), static_cast<int>(in_slice),
                            static_cast<int>(rest * line.cm)};
    if (us < best.gemm_us && extra_bytes(schedule, line) <= kMostExtraBytes) best = {schedule, us};
  }
  return best;
}

/// How a launch runs a problem that is by rows (tile::split::by_rows): in one slab, in slabs of rows and columns, none
/// of which slices K, or in parts of K, each of which may be sliced as a problem of its own.
struct Launch {
  tile::Slabs slabs;
  bool slices;        // the slabs of K have schedules of their own
  size_t extra;       // bytes of the workspace behind the planes
  Schedule schedule;  // of all slabs where they do not slice
  double us;

  size_t workspace() const { return slabs.workspace() + extra; }
};

/// The time of the pass that makes all planes once.
double pass_us(const Problem& p, const DeviceFacts& facts, const Line& line, bool shares) {
  return tile::split::pass_bytes(p, shares, line.planes) / (line.pass_share() * dram_gbs(facts) * 1e3);
}

/// Batches of 256x256x64 to 1,024x1,024x128 took 1.1 times as long as predicted in the median of 90.
double batch_factor(const Problem& p) {
  constexpr double kBatchFactor = 1.1;
  return p.batches() > 1 ? kBatchFactor : 1.0;
}

double start_us(const Problem& p) {
  return kStartUs + (p.batches() > 1 ? kBatchUs : 0.0);
}

Launch in_one_slab(const Problem& p, const DeviceFacts& facts, const Line& line, int most_slices = kMostSlices) {
  const Plan whole = plan(p, facts, line, most_slices);
  const bool shares = tile::split::shares_planes(p);
  return {.slabs = tile::one_slab(p, line.bytes(shares)),
          .slices = false,
          .extra = extra_bytes(whole.schedule, line),
          .schedule = whole.schedule,
          .us = start_us(p) + pass_us(p, facts, line, shares) + whole.gemm_us};
}

/// Slabs of rows and columns. Most slabs of x @ x.T are off the diagonal and compute all of their tiles.
Launch in_slabs(Problem p, const DeviceFacts& facts, const Line& line) {
  p.b_is_a_transposed = false;
  const Plan unsliced = plan(p, facts, line, /*most_slices=*/1);
  const tile::SlabCost cost{
      .tile_m = int64_t{line.tile.bm} * line.cm,
      .tile_n = line.tile.bn,
      .at_once = std::max(1, facts.sm_count / line.cm),
      .gemm_us = unsliced.gemm_us,
      .us_per_byte = tile::split::pass_share(line.planes) / (line.pass_share() * dram_gbs(facts) * 1e3),
      .launch_us = kStartUs,
  };
  const auto limit = static_cast<size_t>(p.most_workspace);
  const tile::Slabs slabs = tile::slabs_of(p, limit, cost, line.bytes(false));
  return {.slabs = slabs,
          .slices = false,
          .extra = 0,
          .schedule = kOneSlice,
          .us = start_us(p) + pass_us(p, facts, line, false) + unsliced.gemm_us + slabs.extra_us};
}

/// Parts of K. slabs.count is 0 where the order of summation must be one, or the parts would be short.
Launch in_parts_of_k(const Problem& p, const DeviceFacts& facts, const Line& line) {
  constexpr int64_t kLeastPart = 512;
  const auto limit = static_cast<size_t>(p.most_workspace);
  if (p.numerics != NumericsMode::kFast || p.batches() > 1 || limit < 2 * kMostExtraBytes) return {};
  const bool shares = tile::split::shares_planes(p);
  const tile::Slabs slabs = tile::slabs_of_k(p, limit - kMostExtraBytes, line.bytes(shares));
  if (slabs.count == 0 || slabs.k < kLeastPart) return {};
  Problem part = p;
  part.k = slabs.k;
  const auto parts = static_cast<double>(slabs.count), results = static_cast<double>(p.m) * static_cast<double>(p.n);
  const double sum_us = results * kSumBytes / (kSplitShare * dram_gbs(facts) * 1e3);
  return {.slabs = slabs,
          .slices = true,
          .extra = kMostExtraBytes,
          .schedule = kOneSlice,
          .us = parts * (kStartUs + plan(part, facts, line).gemm_us) + pass_us(p, facts, line, shares) +
                (parts - 1) * sum_us};
}

Launch launch_of(const Problem& p, const DeviceFacts& facts, const Line& line) {
  const Launch whole = in_one_slab(p, facts, line);
  const auto limit = static_cast<size_t>(p.most_workspace);
  if (whole.workspace() <= limit) return whole;
  if (whole.schedule.slices > 1 && whole.workspace() - whole.extra <= limit) {  // without the sums of slices
    const Launch unsliced = in_one_slab(p, facts, line, /*most_slices=*/1);
    if (unsliced.workspace() <= limit) return unsliced;
  }
  const Launch of_k = in_parts_of_k(p, facts, line), slabs = in_slabs(p, facts, line);
  return of_k.slabs.count > 0 && (slabs.slabs.count == 0 || of_k.us < slabs.us) ? of_k : slabs;
}

/// How a kernel runs that finds nothing to do as a rule: in the fewest slabs, because their launches are all it takes.
Launch launch_of_idle(const Problem& p, const DeviceFacts& facts, const Line& line) {
  const Launch fastest = launch_of(p, facts, line);
  if (fastest.slabs.count == 1) return fastest;
  const Launch of_k = in_parts_of_k(p, facts, line);
  return of_k.slabs.count > 0 && of_k.slabs.count < fastest.slabs.count ? of_k : fastest;
}

/// Enqueues the kernel over all slabs.
template <class C>
Status run(const Problem& p, const DeviceFacts& facts, const Line& line, const Launch& launch, void* workspace,
           unsigned* inaccurate, Stream stream) {
  bool is_first = true;
  return tile::for_each_slab(p, launch.slabs, [&](const Problem& part, const tile::Changed& changed) {
    const Schedule schedule = launch.slices ? plan(part, facts, line).schedule : launch.schedule;
    const tile::split::Memory memory =
        tile::split::memory_of(launch.slabs, workspace, changed, inaccurate, std::exchange(is_first, false));
    return call<&sm90_split::launch<C>>(part, facts, schedule, memory, stream);
  });
}

bool eligible(const Problem& given, const DeviceFacts& facts, const Line& line, Reason* why) {
  const Problem p = tile::split::by_rows(given);
  return is_built_for_sm90a(why) && tile::split::takes_if_complex(given, why) && is_countable(p, line.tile, why) &&
         tile::fit_workspace(launch_of(p, facts, line).slabs, p, why);
}

template <class C>
constexpr Line kLine = {
    .tile = {.bm = C::BM, .bn = C::BN, .bk = C::BK, .stages = C::STAGES, .threads = C::kThreads},
    .smem_bytes = C::kSmemBytes,
    .cm = C::CM,
    .planes = C::kPlanes,
    .rate = std::get<sm90_split::Kernel<C>>(sm90_split::kKernels).rate,
};

/// A kernel over three planes.
template <class C>
struct Functions {
  static bool eligible(const Problem& p, const DeviceFacts& facts, Reason* why) {
    return hgemm::eligible(p, facts, kLine<C>, why);
  }
  static size_t workspace(const Problem& p, const DeviceFacts& facts) {
    return launch_of(tile::split::by_rows(p), facts, kLine<C>).workspace();
  }
  static double predict_us(const Problem& p, const DeviceFacts& facts) {
    return batch_factor(p) * launch_of(tile::split::by_rows(p), facts, kLine<C>).us;
  }
  static Status launch(const Problem& p, const DeviceFacts& facts, void* workspace, Stream stream) {
    const Problem q = tile::split::by_rows(p);
    return run<C>(q, facts, kLine<C>, launch_of(q, facts, kLine<C>), workspace, nullptr, stream);
  }
};

/// A kernel over two planes, and behind it the one over three, `Exact`, which computes D again if a result is not
/// accurate; the device knows, not the host. It alone runs where D can be computed only once.
template <class C, class Exact>
struct ScaledFunctions {
  static bool eligible(const Problem& p, const DeviceFacts& facts, Reason* why) {
    return tile::split::are_eligible<&hgemm::eligible>(p, facts, kLine<C>, kLine<Exact>, why);
  }
  static size_t workspace(const Problem& p, const DeviceFacts& facts) {
    const Problem q = tile::split::behind_flag(p);
    return tile::split::kFlagBytes +
           std::max({launch_of(q, facts, kLine<C>).workspace(), launch_of(q, facts, kLine<Exact>).workspace(),
                     launch_of_idle(q, facts, kLine<Exact>).workspace()});
  }
  static double predict_us(const Problem& p, const DeviceFacts& facts) {
    return tile::split::kIdleUs + batch_factor(p) * launch_of(tile::split::behind_flag(p), facts, kLine<C>).us;
  }
  static Status launch(const Problem& p, const DeviceFacts& facts, void* workspace, Stream stream) {
    const Problem q = tile::split::behind_flag(p);
    const auto two = [&](void* rest, unsigned* inaccurate) {
      return run<C>(q, facts, kLine<C>, launch_of(q, facts, kLine<C>), rest, inaccurate, stream);
    };
    const auto three = [&](void* rest, unsigned* inaccurate) {
      const Launch launch =
          inaccurate == nullptr ? launch_of(q, facts, kLine<Exact>) : launch_of_idle(q, facts, kLine<Exact>);
      return run<Exact>(q, facts, kLine<Exact>, launch, rest, inaccurate, stream);
    };
    return tile::split::launch_both(q, workspace, two, three);
  }
};

template <class C>
constexpr Name kName =
    name_of(C::kScales ? "sm90_split3_" : "sm90_split_", C::BM, "x", C::BN, "x", C::BK, "_c", C::CM, "x1x1");

template <class Functions, class C>
constexpr Variant variant_over_planes(Sums sums) {
  Variant v = variant_of<Functions>(kName<C>, Family::kSm90Split, kFloat32 | kComplex64, kLine<C>);
  v.arithmetic = C::kScales ? Arithmetic::kScaledF32 : Arithmetic::kSplitF32;
  v.min_cc = kHopper;
  v.max_cc = kHopper;
  v.cut.cluster_m = C::CM;
  v.cut.pads = true;
  v.sums = sums;
  return v;
}

/// The kernel over three planes with the same columns as C.
template <class C>
using Exact = sm90_split::Config<C::BN, C::BN == 128 ? 2 : 3, C::CM>;

template <class C>
constexpr auto variants_of(const sm90_split::Kernel<C>&) {
  if constexpr (C::kScales) {  // which kernel's sums a row gets may depend on other rows
    return std::array{variant_over_planes<ScaledFunctions<C, Exact<C>>, C>(Sums::kVaries)};
  } else {
    return std::array{variant_over_planes<Functions<C>, C>(Sums::kPlanes)};
  }
}

constexpr auto kVariants = variants_of_list(sm90_split::kKernels, [](auto kernel) { return variants_of(kernel); });

}  // namespace

const VariantList kSm90SplitVariants = kVariants;

}  // namespace hgemm
