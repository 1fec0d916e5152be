// The variants of sm80_split: which problems each one can run, and its predicted time.
#include <algorithm>
#include <array>
#include <cstdint>
#include <tuple>

#include "core/chip.h"
#include "core/problem.h"
#include "core/variant_list.h"
#include "kernels/sm80_split/config.h"
#include "kernels/sm80_split/list.h"
#include "kernels/variants.h"
#include "tile/slabs.h"
#include "tile/split_planes.h"
#include "tile/triangle.h"

namespace hgemm {
namespace {

/// A kernel of list.h as plain values.
struct Line {
  Tile tile;
  int smem_bytes;
  double rate;
};

// Fitted to 90 times on an H200, with an error of 6 % (root mean square).
constexpr double kStartUs = 2.5;     // both launches and the first stages
constexpr double kPassShare = 0.90;  // share of the read bandwidth that the pass that makes the planes reaches
constexpr double kWaveUs = 1.7;      // once per wave of blocks: their last wait and their stores
constexpr int kMostBlocks = 2;       // blocks per SM, as limited by registers
constexpr int kProducts = 6;         // products of a plane of A and a plane of B

/// The predicted time of the GEMM over whole planes, and how its output tiles run.
tile::SlabCost cost_of(const Problem& p, const DeviceFacts& facts, const Line& line) {
  const Chip& chip = chip_of(facts.cc);
  const Tile& t = line.tile;
  // Resident blocks of an SM share its tensor cores. A single block does not keep them busy and takes as long as two.
  const int64_t together = std::clamp(facts.smem_per_sm / (line.smem_bytes + 1024), 1, kMostBlocks);
  const int64_t of_matrix = tile::split::is_triangle(p) ? tile::tiles_of_triangle(p.n, t.bm, t.bn)
                                                        : ceil_div(p.m, t.bm) * ceil_div(p.n, t.bn);
  const int64_t tiles = of_matrix * p.batches();
  const double waves = static_cast<double>(ceil_div(tiles, std::max(1, facts.sm_count) * together));
  const double tile_clk =
      2.0 * kProducts * t.bm * t.bn * static_cast<double>(ceil_div(p.k, t.bk) * t.bk) / (line.rate * chip.mma_flops);
  return {
      .tile_m = t.bm,
      .tile_n = t.bn,
      .at_once = std::max(1, facts.sm_count) * together,
      .gemm_us = waves * (static_cast<double>(together) * tile_clk / (chip.clock_ghz * 1e3) + kWaveUs),
      .us_per_byte = tile::split::pass_share(tile::split::kPlanes) / (kPassShare * dram_gbs(facts) * 1e3),
      .launch_us = kStartUs,
  };
}

/// The slabs of a problem that is by rows (tile::split::by_rows). Only x @ x.T in one slab makes its planes once.
tile::Slabs slabs_of(const Problem& p, const DeviceFacts& facts, const Line& line) {
  if (tile::split::shares_planes(p)) {
    const tile::Slabs whole = tile::one_slab(p, tile::split::PlanesBytes(/*shares=*/true));
    if (whole.workspace() <= static_cast<size_t>(p.most_workspace)) return whole;
  }
  return tile::fewest_slabs(p, static_cast<size_t>(p.most_workspace), tile::split::PlanesBytes(),
                            [&] { return cost_of(p, facts, line); });
}

bool eligible(const Problem& given, const DeviceFacts& facts, const Line& line, Reason* why) {
  const Problem p = tile::split::by_rows(given);
  return tile::split::takes_if_complex(given, why) && tile::split::is_countable(p, line.tile, why) &&
         tile::fit_workspace(slabs_of(p, facts, line), p, why);
}

double predict_us(const Problem& given, const DeviceFacts& facts, const Line& line) {
  const Problem p = tile::split::by_rows(given);
  const tile::Slabs slabs = slabs_of(p, facts, line);
  const double pass_us = tile::split::pass_bytes(p, slabs.b_bytes == 0) / (kPassShare * dram_gbs(facts) * 1e3);
  return kStartUs + pass_us + cost_of(p, facts, line).gemm_us + slabs.extra_us;
}

template <class C>
constexpr Line kLine = {
    .tile = {.bm = C::BM, .bn = C::BN, .bk = C::BK, .stages = C::STAGES, .threads = C::kThreads},
    .smem_bytes = C::kSmemBytes,
    .rate = std::get<sm80_split::Kernel<C>>(sm80_split::kKernels).rate,
};

template <class C>
struct Functions {
  static bool eligible(const Problem& p, const DeviceFacts& facts, Reason* why) {
    return hgemm::eligible(p, facts, kLine<C>, why);
  }
  static size_t workspace(const Problem& p, const DeviceFacts& facts) {
    return slabs_of(tile::split::by_rows(p), facts, kLine<C>).workspace();
  }
  static double predict_us(const Problem& p, const DeviceFacts& facts) { return hgemm::predict_us(p, facts, kLine<C>); }
  static Status launch(const Problem& given, const DeviceFacts& facts, void* workspace, Stream stream) {
    const Problem p = tile::split::by_rows(given);
    const tile::Slabs slabs = slabs_of(p, facts, kLine<C>);
    return tile::for_each_slab(p, slabs, [&](const Problem& part, const tile::Changed& changed) {
      return call<&sm80_split::launch<C>>(part, tile::split::memory_of(slabs, workspace, changed), stream);
    });
  }
};

template <class C>
constexpr Name kName = name_of("sm80_split_", C::BM, "x", C::BN, "x", C::BK, "_s", C::STAGES);

template <class C>
constexpr auto variants_of(const sm80_split::Kernel<C>&) {
  Variant v = variant_of<Functions<C>>(kName<C>, Family::kSm80Split, kFloat32 | kComplex64, kLine<C>);
  v.arithmetic = Arithmetic::kSplitF32;
  v.cut.pads = true;
  v.sums = Sums::kPlanesMma;
  return std::array{v};
}

constexpr auto kVariants = variants_of_list(sm80_split::kKernels, [](auto kernel) { return variants_of(kernel); });

}  // namespace

const VariantList kSm80SplitVariants = kVariants;

}  // namespace hgemm
