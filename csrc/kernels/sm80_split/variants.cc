// The variants of sm80_split: which problems each one can run, and its predicted time.
#include <algorithm>
#include <array>
#include <cstdint>
#include <tuple>
#include <utility>

#include "core/chip.h"
#include "core/problem.h"
#include "core/variant_list.h"
#include "kernels/sm80_split/config.h"
#include "kernels/sm80_split/list.h"
#include "kernels/variants.h"
#include "tile/slabs.h"
#include "tile/split_fallback.h"
#include "tile/split_planes.h"
#include "tile/triangle.h"

namespace hgemm {
namespace {

// Of three planes, fitted to 90 times on an H200, with an error of 6 % (root mean square).
constexpr double kStartUs = 2.5;      // both launches and the first stages
constexpr double kSplitShare = 0.90;  // share of the read bandwidth that the pass that makes three planes reaches
constexpr double kWaveUs = 1.7;       // once per wave of blocks: their last wait and their stores

// Of two planes, estimates: nobody has timed this kernel, neither on an H200 nor on a chip that it is meant for. The
// pass that makes two planes reaches 0.60 in sm90_split. Without clusters it reads the operands twice, and so moves
// half as many bytes more: at 0.90 that is as long.
constexpr double kScaledShare = 0.60;
constexpr double kSegmentUs = 1.0;   // of the pass without clusters, for a segment of K that a block reads
constexpr double kIdleWaveUs = 1.0;  // once per wave of blocks that find nothing to do

/// A kernel of list.h as plain values.
struct Line {
  Tile tile;
  int smem_bytes;
  int planes;
  double rate;

  bool scales() const { return planes == tile::split::kTwoPlanes; }
  /// The share of the read bandwidth that making the planes reaches.
  double pass_share() const { return scales() ? kScaledShare : kSplitShare; }
  /// Products of a plane of A and a plane of B.
  int products() const { return scales() ? 3 : 6; }
  tile::split::PlanesBytes bytes(bool shares) const { return tile::split::PlanesBytes(shares, planes); }
};

/// Blocks that an SM runs at the same time. Registers allow two, and three over two planes before Hopper.
int64_t blocks_per_sm(const DeviceFacts& facts, const Line& line) {
  const int most = line.scales() && facts.cc < kHopper ? 3 : 2;
  return std::clamp(facts.smem_per_sm / (line.smem_bytes + 1024), 1, most);
}

/// Output tiles of a problem that a launch computes.
int64_t tiles_of(const Problem& p, const Tile& t) {
  const int64_t of_matrix = tile::split::is_triangle(p) ? tile::tiles_of_triangle(p.n, t.bm, t.bn)
                                                        : ceil_div(p.m, t.bm) * ceil_div(p.n, t.bn);
  return of_matrix * p.batches();
}

/// The predicted time of the GEMM over whole planes, and how its output tiles run.
tile::SlabCost cost_of(const Problem& p, const DeviceFacts& facts, const Line& line) {
  const Chip& chip = chip_of(facts.cc);
  const Tile& t = line.tile;
  // Resident blocks of an SM share its tensor cores. A single block does not keep them busy and takes as long as two.
  const int64_t together = blocks_per_sm(facts, line), at_once = std::max(1, facts.sm_count) * together;
  const double waves = static_cast<double>(ceil_div(tiles_of(p, t), at_once));
  const double steps = static_cast<double>(ceil_div(p.k, t.bk));
  const double tile_clk = 2.0 * line.products() * t.bm * t.bn * t.bk * steps / (line.rate * chip.mma_flops);
  return {
      .tile_m = t.bm,
      .tile_n = t.bn,
      .at_once = at_once,
      .gemm_us = waves * (static_cast<double>(together) * tile_clk / (chip.clock_ghz * 1e3) + kWaveUs),
      .us_per_byte = tile::split::pass_share(line.planes) / (line.pass_share() * dram_gbs(facts) * 1e3),
      .launch_us = kStartUs,
  };
}

/// The slabs of a problem that is by rows (tile::split::by_rows). Only x @ x.T in one slab makes its planes once.
tile::Slabs slabs_of(const Problem& p, const DeviceFacts& facts, const Line& line) {
  if (tile::split::shares_planes(p)) {
    const tile::Slabs whole = tile::one_slab(p, line.bytes(/*shares=*/true));
    if (whole.workspace() <= static_cast<size_t>(p.most_workspace)) return whole;
  }
  return tile::fewest_slabs(p, static_cast<size_t>(p.most_workspace), line.bytes(/*shares=*/false),
                            [&] { return cost_of(p, facts, line); });
}

/// True if a problem that is by rows can run.
bool eligible(const Problem& p, const DeviceFacts& facts, const Line& line, Reason* why) {
  return is_countable(p, line.tile, why) && tile::fit_workspace(slabs_of(p, facts, line), p, why);
}

/// The time of the pass that makes all planes once. Without clusters a block of the pass that makes two planes reads
/// all of K, one segment after the other, and then once more.
double pass_us(const Problem& p, const DeviceFacts& facts, const Line& line, bool shares) {
  const double us = tile::split::pass_bytes(p, shares, line.planes) / (line.pass_share() * dram_gbs(facts) * 1e3);
  if (!line.scales() || has_clusters(facts.cc)) return us;
  return std::max(us, 2 * kSegmentUs * static_cast<double>(ceil_div(p.k, tile::split::kPiece)));
}

double predict_us(const Problem& p, const DeviceFacts& facts, const Line& line) {
  const tile::Slabs slabs = slabs_of(p, facts, line);
  return kStartUs + pass_us(p, facts, line, slabs.b_bytes == 0) + cost_of(p, facts, line).gemm_us + slabs.extra_us;
}

/// Enqueues the kernel over all slabs.
template <class C>
Status run(const Problem& p, const DeviceFacts& facts, const Line& line, void* workspace, unsigned* inaccurate,
           Stream stream) {
  const tile::Slabs slabs = slabs_of(p, facts, line);
  bool is_first = true;
  return tile::for_each_slab(p, slabs, [&](const Problem& part, const tile::Changed& changed) {
    const tile::split::Memory memory =
        tile::split::memory_of(slabs, workspace, changed, inaccurate, std::exchange(is_first, false));
    return call<&sm80_split::launch<C>>(part, facts, memory, stream);
  });
}

template <class C>
constexpr Line kLine = {
    .tile = {.bm = C::BM, .bn = C::BN, .bk = C::BK, .stages = C::STAGES, .threads = C::kThreads},
    .smem_bytes = C::kSmemBytes,
    .planes = C::kPlanes,
    .rate = std::get<sm80_split::Kernel<C>>(sm80_split::kKernels).rate,
};

/// A kernel over three planes.
template <class C>
struct Functions {
  static bool eligible(const Problem& p, const DeviceFacts& facts, Reason* why) {
    return tile::split::takes_if_complex(p, why) && hgemm::eligible(tile::split::by_rows(p), facts, kLine<C>, why);
  }
  static size_t workspace(const Problem& p, const DeviceFacts& facts) {
    return slabs_of(tile::split::by_rows(p), facts, kLine<C>).workspace();
  }
  static double predict_us(const Problem& p, const DeviceFacts& facts) {
    return hgemm::predict_us(tile::split::by_rows(p), facts, kLine<C>);
  }
  static Status launch(const Problem& p, const DeviceFacts& facts, void* workspace, Stream stream) {
    return run<C>(tile::split::by_rows(p), facts, kLine<C>, workspace, nullptr, stream);
  }
};

/// A kernel over two planes, and behind it the one over three, `Exact`, which computes D again if a result is not
/// accurate (tile/split_fallback.h).
template <class C, class Exact>
struct ScaledFunctions {
  static bool eligible(const Problem& p, const DeviceFacts& facts, Reason* why) {
    return tile::split::are_eligible<&hgemm::eligible>(p, facts, kLine<C>, kLine<Exact>, why);
  }
  static size_t workspace(const Problem& p, const DeviceFacts& facts) {
    const Problem q = tile::split::behind_flag(p);
    return tile::split::kFlagBytes +
           std::max(slabs_of(q, facts, kLine<C>).workspace(), slabs_of(q, facts, kLine<Exact>).workspace());
  }
  static double predict_us(const Problem& p, const DeviceFacts& facts) {
    const Problem q = tile::split::behind_flag(p);
    const int64_t at_once = std::max(1, facts.sm_count) * blocks_per_sm(facts, kLine<Exact>);
    const double waves = static_cast<double>(ceil_div(tiles_of(q, kLine<Exact>.tile), at_once));
    const double launches = static_cast<double>(slabs_of(q, facts, kLine<Exact>).count);
    return hgemm::predict_us(q, facts, kLine<C>) + launches * tile::split::kIdleUs + waves * kIdleWaveUs;
  }
  static Status launch(const Problem& p, const DeviceFacts& facts, void* workspace, Stream stream) {
    const Problem q = tile::split::behind_flag(p);
    return tile::split::launch_both(
        q, workspace,
        [&](void* rest, unsigned* inaccurate) { return run<C>(q, facts, kLine<C>, rest, inaccurate, stream); },
        [&](void* rest, unsigned* inaccurate) { return run<Exact>(q, facts, kLine<Exact>, rest, inaccurate, stream); });
  }
};

template <class C>
constexpr Name kName =
    name_of(C::kScales ? "sm80_split3_" : "sm80_split_", C::BM, "x", C::BN, "x", C::BK, "_s", C::STAGES);

template <class Functions, class C>
constexpr Variant variant_over_planes(Sums sums) {
  Variant v = variant_of<Functions>(kName<C>, Family::kSm80Split, kFloat32 | kComplex64, kLine<C>);
  v.arithmetic = C::kScales ? Arithmetic::kScaledF32 : Arithmetic::kSplitF32;
  v.cut.pads = true;
  v.sums = sums;
  return v;
}

/// The kernel over three planes with the same tile as C.
template <class C>
using Exact = sm80_split::Config<C::BM, C::BN, 3>;

template <class C>
constexpr auto variants_of(const sm80_split::Kernel<C>&) {
  if constexpr (C::kScales) {  // which kernel's sums a row gets may depend on other rows
    return std::array{variant_over_planes<ScaledFunctions<C, Exact<C>>, C>(Sums::kVaries)};
  } else {
    return std::array{variant_over_planes<Functions<C>, C>(Sums::kPlanesMma)};
  }
}

constexpr auto kVariants = variants_of_list(sm80_split::kKernels, [](auto kernel) { return variants_of(kernel); });

}  // namespace

const VariantList kSm80SplitVariants = kVariants;

}  // namespace hgemm
