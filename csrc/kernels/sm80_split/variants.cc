// The list of sm80_split kernels: what each one serves and what it is predicted to take.
#include <algorithm>
#include <cstdint>
#include <iterator>

#include "core/chip.h"
#include "core/problem.h"
#include "core/variant_list.h"
#include "kernels/sm80_split/config.h"
#include "kernels/variants.h"
#include "tile/split_planes.h"

namespace hgemm {
namespace {

/// One line of list.inc as values.
struct Line {
  Tile tile;
  int smem_bytes;
  double rate;
};

// Fitted to 90 times on an H200, 6 % off on average (root mean square).
constexpr double kStartUs = 2.5;     // both launches, first stages
constexpr double kPassShare = 0.90;  // of the read stream that the pass over the operands reaches
constexpr double kTurnUs = 1.7;      // of blocks that share an SM, once: their last wait, their stores
constexpr int kMostBlocks = 2;       // that registers leave room for
constexpr int kProducts = 6;

double predict_us(const Problem& p, const DeviceFacts& facts, const Line& line) {
  const Chip& chip = chip_of(facts.cc);
  const Tile& t = line.tile;
  // Blocks that an SM holds at once share its tensor cores; one alone does not keep them busy, and takes as long.
  const int64_t together = std::clamp(facts.smem_per_sm / (line.smem_bytes + 1024), 1, kMostBlocks);
  const int64_t tiles = ceil_div(p.m, t.bm) * ceil_div(p.n, t.bn) * p.batches();
  const double turns = static_cast<double>(ceil_div(tiles, std::max(1, facts.sm_count) * together));
  const double tile_clk =
      2.0 * kProducts * t.bm * t.bn * static_cast<double>(ceil_div(p.k, t.bk) * t.bk) / (line.rate * chip.mma_flops);
  const double gemm_us = turns * (static_cast<double>(together) * tile_clk / (chip.clock_ghz * 1e3) + kTurnUs);
  return kStartUs + tile::split::pass_bytes(p) / (kPassShare * dram_gbs(facts) * 1e3) + gemm_us;
}

template <const Line& kLine, auto kLaunch>
struct Functions {
  static bool eligible(const Problem& p, const DeviceFacts&, Reason* why) {
    return tile::split::is_countable(p, kLine.tile, why);
  }
  static size_t workspace(const Problem& p, const DeviceFacts&) { return tile::split::workspace_bytes(p); }
  static double predict_us(const Problem& p, const DeviceFacts& facts) { return hgemm::predict_us(p, facts, kLine); }
  static Status launch(const Problem& p, const DeviceFacts&, void* workspace, Stream stream) {
    return kLaunch(p, workspace, stream);
  }
};

template <class C>
constexpr Line line_of(double rate) {
  return {{C::BM, C::BN, C::BK, C::STAGES, C::kThreads}, C::kSmemBytes, rate};
}

#define SM80_SPLIT(BM, BN, STAGES, RATE) \
  constexpr Line kLine_##BM##x##BN = line_of<sm80_split::Config<BM, BN, STAGES>>(RATE);
#include "kernels/sm80_split/list.inc"
#undef SM80_SPLIT

template <class Functions>
constexpr Variant split_variant(const char* name, const Line& line) {
  return variant_of<Functions>(name, Family::kSm80Split, Numerics::kSplitF32, kFloat32, Sums::kPlanesMma, 80, kAnyNewer,
                               line, false, {1, 1, 1, false, true});
}

}  // namespace

const Variant kSm80SplitVariants[] = {
#define SM80_SPLIT(BM, BN, STAGES, RATE)                                                      \
  split_variant<Functions<kLine_##BM##x##BN, sm80_split::launch_##BM##x##BN##x32_s##STAGES>>( \
      "sm80_split_" #BM "x" #BN "x32_s" #STAGES, kLine_##BM##x##BN),
#include "kernels/sm80_split/list.inc"
#undef SM80_SPLIT
};
const int kSm80SplitVariantCount = static_cast<int>(std::size(kSm80SplitVariants));

}  // namespace hgemm
