// The list of sm90_split kernels: what each one serves and what it is predicted to take.
#include <algorithm>
#include <cstdint>
#include <iterator>

#include "core/chip.h"
#include "core/cost.h"
#include "core/problem.h"
#include "core/variant_list.h"
#include "kernels/sm90_split/config.h"
#include "kernels/variants.h"
#include "tile/split_planes.h"

namespace hgemm {
namespace {

constexpr int kHopper = 90;  // compute capability

/// One line of list.inc as values.
struct Line {
  Tile tile;
  int smem_bytes;
  int cm;
  double rate;
};

// Fitted to 168 times on an H200, 3.8 % off on average (root mean square).
constexpr double kStartUs = 2.5;      // both launches, first barriers, first stages
constexpr double kSplitShare = 0.90;  // of the read stream that the pass over the operands reaches
constexpr double kColumnUs = 0.027;   // of a tile, once: its last wait, what is done to its sums, their stores
constexpr int kProducts = 6;

bool eligible(const Problem& p, const Line& line, Reason* why) {
#ifdef HGEMM_NO_SM90A
  (void)p, (void)line;
  return refuse(why, "%s", "not built: HGEMM_CUDA_ARCHS left out 90a");
#else
  return tile::split::is_countable(p, line.tile, why);
#endif
}

double predict_us(const Problem& p, const DeviceFacts& facts, const Line& line) {
  const Chip& chip = chip_of(facts.cc);
  const Tile& t = line.tile;
  const int64_t units = ceil_div(p.m, int64_t{t.bm} * line.cm) * ceil_div(p.n, int64_t{t.bn}) * p.batches();
  const double waves = static_cast<double>(ceil_div(units, int64_t{std::max(1, facts.sm_count / line.cm)}));
  const double steps = static_cast<double>(ceil_div(p.k, int64_t{t.bk}));
  const double step_clk = 2.0 * kProducts * t.bm * t.bn * t.bk / (line.rate * chip.peak_flops);
  const double gemm_us = waves * (steps * step_clk / (chip.clock_ghz * 1e3) + kColumnUs * t.bn);
  return kStartUs + tile::split::pass_bytes(p) / (kSplitShare * chip.dram_gbs * 1e3) + gemm_us;
}

template <const Line& kLine, auto kLaunch>
struct Functions {
  static bool eligible(const Problem& p, const DeviceFacts&, Reason* why) { return hgemm::eligible(p, kLine, why); }
  static size_t workspace(const Problem& p, const DeviceFacts&) { return tile::split::workspace_bytes(p); }
  static double predict_us(const Problem& p, const DeviceFacts& facts) { return hgemm::predict_us(p, facts, kLine); }
  static Status launch(const Problem& p, const DeviceFacts& facts, void* workspace, Stream stream) {
    return kLaunch(p, facts, workspace, stream);
  }
};

template <class C>
constexpr Line line_of(double rate) {
  return {{C::BM, C::BN, C::BK, C::STAGES, C::kThreads}, C::kSmemBytes, C::CM, rate};
}

#define SM90_SPLIT(BN, STAGES, CM, RATE) \
  constexpr Line kLine_128x##BN##x64_c##CM##x1x1 = line_of<sm90_split::Config<BN, STAGES, CM>>(RATE);
#include "kernels/sm90_split/list.inc"
#undef SM90_SPLIT

template <class Functions>
constexpr Variant split_variant(const char* name, const Line& line) {
  return variant_of<Functions>(name, Family::kSm90Split, Numerics::kSplitF32, kFloat32, Sums::kPlanes, kHopper, kHopper,
                               line, false, {line.cm, 1, 1, false, true, false, false, false});
}

}  // namespace

const Variant kSm90SplitVariants[] = {
#define SM90_SPLIT(BN, STAGES, CM, RATE)                                                                   \
  split_variant<Functions<kLine_128x##BN##x64_c##CM##x1x1, sm90_split::launch_128x##BN##x64_c##CM##x1x1>>( \
      "sm90_split_128x" #BN "x64_c" #CM "x1x1", kLine_128x##BN##x64_c##CM##x1x1),
#include "kernels/sm90_split/list.inc"
#undef SM90_SPLIT
};
const int kSm90SplitVariantCount = static_cast<int>(std::size(kSm90SplitVariants));

}  // namespace hgemm
