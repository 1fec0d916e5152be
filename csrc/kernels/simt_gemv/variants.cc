// The variants of simt_gemv: which problems each one can run, its schedule, and its predicted time.
#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <tuple>

#include "core/chip.h"
#include "core/cost.h"
#include "core/problem.h"
#include "core/variant_list.h"
#include "kernels/simt_gemv/config.h"
#include "kernels/simt_gemv/list.h"
#include "kernels/variants.h"

namespace hgemm {
namespace {

using simt_gemv::Schedule;

/// A kernel of list.h as plain values.
struct Line {
  Tile tile;  // bm: rows of W that a block takes, at least; bn: rows of x
  int smem_bytes;
  double rate;
};

// From sweeps on an H100 and an H200 (NOTES.md).
//
// Microseconds of the launch, the first loads and the sums, with a K-major and with an MN-major W. The latter takes
// kColUs more for each row of x.
constexpr double kFixedUs = 1.7, kFixedMnUs = 2.0, kColUs = 0.2;
constexpr double kSplitUs = 1.5;                      // sums through the workspace
constexpr double kRampUs = 1.0, kRampBytes = 16e6;    // until the whole memory system is busy
constexpr double kBlockRate = 27, kBlockRateMn = 70;  // GB/s that one block reads, K-major and MN-major
// The smallest W that was timed has 128x1024 elements, and batches were not timed. The predictions for those are at
// least kLeastUs, and are multiplied by kUntimed.
constexpr double kLeastBytes = 0.5e6, kLeastUs = 3.0;
constexpr double kUntimed = 1.5;
// Microseconds of a block that reads next to nothing, as in gemv. It matters in tiny batches and in batches of vectors
// by small matrices: 20,000 of 1x40x40 take 186 us, 4096 of 1x64x64 take 43 us.
constexpr double kBlockUs = 1.5;
constexpr int kFullWaveTenths = 7;  // a wave counts as full if it has this many tenths of the blocks that fit
constexpr int kBlockUnits = 3;      // what a block takes besides its loads, expressed in units of loads
constexpr int kLeastSliceK = 1024;

Schedule schedule(const Problem& p, const DeviceFacts& facts, const Line& line) {
  const ShortSide sides = short_side_of(p);
  const int64_t batches = p.batches(), sms = facts.sm_count, slots = sms * simt_gemv::kBlocks;
  Schedule s{};
  s.dependent = has_dependent_launch(facts.cc);
  s.slices = 1;
  s.slice_k = static_cast<int>(p.k);
  const auto cut = [&](int tile_rows) {
    s.tile_rows = tile_rows;
    s.tiles = static_cast<int>(ceil_div(sides.rows, tile_rows));
    return s.tiles * batches;
  };
  if (sides.w_major == Major::kK) {
    s.lanes = 32;
    const auto share = [&](int warps) {
      s.warps = warps;
      return cut(simt_gemv::kRowsK * simt_gemv::kWarps / warps);
    };
    // With fewer warps per row there are fewer blocks, which run longer. With more than one unit of loads in flight, a
    // single wave is best, if it is full. Otherwise the choice is the number of warps with which the waves, one after
    // the other, take the fewest units.
    int64_t least = std::numeric_limits<int64_t>::max();
    int best = 1;
    for (int warps = 1; warps <= simt_gemv::kWarps; warps *= 2) {
      const int64_t blocks = share(warps);
      if (line.tile.stages > 1 && blocks <= slots && blocks * 10 >= slots * kFullWaveTenths) return s;
      const int64_t units = ceil_div(p.k, 32 * simt_gemv::kStepK * warps) + kBlockUnits;
      const int64_t all = ceil_div(blocks, slots) * units;
      if (all < least) least = all, best = warps;
    }
    share(best);
  } else {
    s.warps = simt_gemv::kWarps;
    s.lanes = simt_gemv::kMostLanesMN;
    while (cut(simt_gemv::kRowsMN / s.lanes) > 2 * sms && s.lanes > 1) s.lanes /= 2;
    // L1 does not have x at first. With more than two rows of x, more warps are needed to hide the latency of its
    // loads.
    const int64_t wanted = sms * (sides.cols > 2 ? 2 : 1) / std::max<int64_t>(s.tiles * batches, 1);
    const int64_t slices = std::clamp<int64_t>(wanted, 1, std::max<int64_t>(p.k / kLeastSliceK, 1));
    const int unit = simt_gemv::kStepMN * s.lanes * s.warps;
    s.slice_k = static_cast<int>(ceil_div(ceil_div(p.k, slices), unit) * unit);
    s.slices = static_cast<int>(std::max<int64_t>(ceil_div(p.k, std::max(s.slice_k, 1)), 1));
  }
  return s;
}

bool eligible(const Problem& p, const Line& line, Reason* why) {
  if (!has_short_side(p, line.tile.bn, 28, why)) return false;
  const ShortSide sides = short_side_of(p);
  if (alignment_a(p) < 16 || alignment_b(p) < 16) {
    return refuse(why, "rows of A and B must be 16-byte aligned, got %d and %d", alignment_a(p), alignment_b(p));
  }
  if (sides.x_major != Major::kK || p.k % 4 != 0 || (sides.w_major == Major::kMN && sides.rows % 4 != 0)) {
    return refuse(why, "the short operand must be contiguous along K, and rows must have a multiple of 4 elements");
  }
  return true;
}

/// Returns the time to read and write the bytes at the line's rate, or at a lower rate where there are too few blocks
/// to reach it. Shapes outside the timed range get a longer prediction, so that they are left to torch unless torch is
/// expected to be much slower. In batches of a K-major W, whose K is often short, the lanes that find no k in the last
/// round of loads count as if they read.
double predict_us(const Problem& p, const DeviceFacts& facts, const Line& line) {
  const Schedule s = schedule(p, facts, line);
  const bool k_major = short_side_of(p).w_major == Major::kK;
  constexpr int64_t kRoundK = 32 * simt_gemv::kStepK;
  const double padding = k_major && p.batches() > 1
                             ? static_cast<double>(ceil_div(p.k, kRoundK) * kRoundK) / std::max<int64_t>(p.k, 1)
                             : 1.0;
  const double bytes = padding * dram_bytes(p);
  const double blocks = static_cast<double>(s.tiles) * s.slices * static_cast<double>(p.batches());
  const double rate = std::min(line.rate * dram_share(facts), blocks * (k_major ? kBlockRate : kBlockRateMn));
  const double fixed = k_major ? kFixedUs : kFixedMnUs + kColUs * line.tile.bn;
  const double us =
      fixed + (s.slices > 1 ? kSplitUs : 0.0) + kRampUs * std::min(bytes / kRampBytes, 1.0) + bytes / (rate * 1e3);
  const bool was_timed = p.batches() == 1 && bytes >= kLeastBytes;
  if (was_timed) return us;
  const bool has_short_blocks = is_tiny_batch(p) || is_vector_batch(p);
  const double blocks_us = has_short_blocks ? kBlockUs * blocks / (facts.sm_count * simt_gemv::kBlocks) : 0.0;
  return kUntimed * std::max({us, blocks_us, kLeastUs});
}

template <class C>
constexpr Line kLine = {
    .tile = {.bm = simt_gemv::kRowsK,
             .bn = C::COLS,
             .bk = 32 * simt_gemv::kStepK,
             .stages = C::DEPTH,
             .threads = simt_gemv::kThreads},
    .smem_bytes = C::kSmemBytes,
    .rate = std::get<simt_gemv::Kernel<C>>(simt_gemv::kKernels).rate,
};

template <class C>
using Functions = SlicedFunctions<kLine<C>, eligible, predict_us, schedule, &simt_gemv::launch<C>>;

template <class C>
constexpr Name kName = name_of("simt_gemv_m", C::COLS);

template <class C>
constexpr auto variants_of(const simt_gemv::Kernel<C>&) {
  return std::array{variant_of<Functions<C>>(kName<C>, Family::kSimtGemv, kFloat32, kLine<C>)};
}

constexpr auto kVariants = variants_of_list(simt_gemv::kKernels, [](auto kernel) { return variants_of(kernel); });

}  // namespace

const VariantList kSimtGemvVariants = kVariants;

}  // namespace hgemm
