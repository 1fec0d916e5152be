// The variants of skinny: which problems each one can run, its schedule, and its predicted time.
#include <algorithm>
#include <array>
#include <cstdint>
#include <tuple>

#include "core/chip.h"
#include "core/cost.h"
#include "core/problem.h"
#include "core/variant_list.h"
#include "kernels/skinny/config.h"
#include "kernels/skinny/in_order.h"
#include "kernels/skinny/list.h"
#include "kernels/variants.h"

namespace hgemm {
namespace {

using skinny::Schedule;

/// A kernel of list.h as plain values.
struct Line {
  Tile tile;  // bm: rows of W, bn: rows of x
  int smem_bytes;
  double rate, narrow_k, narrow_mn;
};

// Measured on the H200.
constexpr double kFixedUs = 3.5;   // launch, first loads, sums, drain
constexpr double kSplitUs = 0.6;   // sums through the cluster
constexpr double kBlockRate = 45;  // GB/s that one block reads
// Microseconds of an SM for each of its blocks, in a batch: W K-major and MN-major.
constexpr double kBlockUs = 0.94, kBlockMnUs = 2.5;
// The kernel for unaligned rows: GB/s that it reads at most, and microseconds for 64 k: of a slice's chain for a
// K-major W, and of a block, whose loads take longer than the chains of its slices, for an MN-major one.
constexpr double kInOrderRate = 3000, kInOrderMnRate = 2200, kUnitUs = 0.15, kUnitMnUs = 0.32;
constexpr int kStepsPerWarp = 2;  // steps of 64 k (MN-major: 32) that each warp has at least where K is split

Schedule schedule(const Problem& p, const DeviceFacts& facts, const Line& line) {
  const ShortSide sides = short_side_of(p);
  const bool k_major = sides.w_major == Major::kK;
  Schedule s{};
  // In an unaligned MN-major W, the loads of a tile begin up to seven rows before its first row.
  s.tile_rows = k_major ? 16 : sides.wide ? 64 : 56;
  s.interleaved = k_major && !sides.wide;
  const int64_t tiles = s.interleaved ? ceil_div(sides.rows, 8 * s.tile_rows) * 8 : ceil_div(sides.rows, s.tile_rows);
  s.tiles = static_cast<int>(tiles);
  s.dependent = has_dependent_launch(facts.cc);
  // These blocks use few resources of an SM. If a kernel of sm90_skinny started while they run, two of its blocks would
  // share one SM while other SMs stay idle.
  s.releases_early = (s.dependent && !has_own_kernels(facts.cc)) || !sides.wide;
  const int64_t steps = ceil_div(p.k, k_major ? 64 : 32) / (line.tile.threads / 32 * kStepsPerWarp);
  s.splits = 1;
  for (int n : {2, 4, 8}) {
    if (!has_clusters(facts.cc) || tiles * p.batches() * n > 2 * int64_t{facts.sm_count} || steps < n) break;
    s.splits = n;
  }
  return s;
}

bool eligible(const Problem& p, const Line& line, Reason* why) {
  const ShortSide sides = short_side_of(p);
  if (p.b_is_a_transposed && sides.w_major == Major::kK && !sides.wide) {
    return refuse(
        why, "%s",
        "x @ x.T must be symmetric, but on unaligned rows elements (i, j) and (j, i) sum K in different orders");
  }
  return has_short_side(p, line.tile.bn, 30, why);
}

/// Returns the time to read and write the bytes at the kernel's rate, or at a lower rate where there are too few blocks
/// to reach it. For a batch it is at least the time of an SM's blocks one after the other.
double predict_us(const Problem& p, const DeviceFacts& facts, const Line& line) {
  const Schedule s = schedule(p, facts, line);
  const double blocks = static_cast<double>(s.tiles) * s.splits * static_cast<double>(p.batches());
  const ShortSide sides = short_side_of(p);
  const double rate = sides.wide ? line.rate : sides.w_major == Major::kK ? line.narrow_k : line.narrow_mn;
  const double share = dram_share(facts);
  const double bytes_us = dram_bytes(p) / (std::min(rate * share, blocks * kBlockRate) * 1e3);
  const double block_us = p.batches() == 1 ? 0.0 : sides.w_major == Major::kK ? kBlockUs : kBlockMnUs;
  return kFixedUs + (s.splits > 1 ? kSplitUs : 0.0) + std::max(bytes_us, blocks / facts.sm_count * block_us);
}

template <class C>
constexpr const skinny::Kernel<C>& kKernel = std::get<skinny::Kernel<C>>(skinny::kKernels);

template <class C>
constexpr Line kLine = {
    .tile = {.bm = 16, .bn = C::COLS, .bk = 64, .stages = C::kDepthK, .threads = C::kThreads},
    .smem_bytes = C::WARPS * C::COLS * 65 * 4,
    .rate = kKernel<C>.rate,
    .narrow_k = kKernel<C>.narrow_k,
    .narrow_mn = kKernel<C>.narrow_mn,
};

template <class C>
using Functions = ScheduledFunctions<kLine<C>, eligible, predict_us, schedule, &skinny::launch<C, DType::kF16>,
                                     &skinny::launch<C, DType::kBF16>>;

template <class C>
constexpr Name kName = name_of("skinny_mma_16x", C::COLS);

template <class C>
constexpr auto variants_of(const skinny::Kernel<C>&) {
  return std::array{variant_of<Functions<C>>(kName<C>, Family::kSkinny, kHalfTypes, kLine<C>)};
}

/// The kernel for unaligned rows with batch-invariant sums (in_order_kernel.cuh).
struct InOrderLine {
  Tile tile;
  int smem_bytes;
};
constexpr InOrderLine kInOrderLine = {
    .tile = {.bm = skinny::kInOrderRowsK,
             .bn = skinny::kInOrderCols,
             .bk = 64,
             .stages = skinny::kInOrderDepthK,
             .threads = skinny::kInOrderThreads},
    .smem_bytes = skinny::kInOrderSmemBytes,
};

struct InOrderFunctions {
  static bool eligible(const Problem& p, const DeviceFacts&, Reason* why) {
    if (!has_short_side(p, skinny::kInOrderCols, 30, why)) return false;
    const ShortSide sides = short_side_of(p);
    if (p.k == 0) return refuse(why, "K must be positive, got %lld", static_cast<long long>(p.k));
    if (sides.x_major != Major::kK) return refuse(why, "%s", "the smaller operand must be contiguous along K");
    return sides.ldw > 0 || refuse(why, "%s", "rows of the larger operand must not be the same memory");
  }
  static size_t workspace(const Problem&, const DeviceFacts&) { return 0; }
  /// The bytes at the kernel's rate, or, where that is longer, the products of a slice one after the other.
  static double predict_us(const Problem& p, const DeviceFacts& facts) {
    const ShortSide sides = short_side_of(p);
    const bool k_major = sides.w_major == Major::kK;
    const int64_t rows = k_major ? skinny::kInOrderRowsK : skinny::kInOrderRowsMN;
    const int64_t blocks = ceil_div(sides.rows, rows) * p.batches();
    const int64_t at_once = int64_t{facts.sm_count} * (k_major ? 2 : 1);
    const double rate = (k_major ? kInOrderRate : kInOrderMnRate) * dram_share(facts);
    const double unit_us = k_major ? kUnitUs / (sums_in_slices(p) ? kSlices : 1) : kUnitMnUs;
    const double chain_us = unit_us * static_cast<double>(p.k) / 64;
    return kFixedUs + std::max(dram_bytes(p) / (rate * 1e3), static_cast<double>(ceil_div(blocks, at_once)) * chain_us);
  }
  static Status launch(const Problem& p, const DeviceFacts&, void*, Stream stream) {
    return skinny::launch_in_order(p, stream);
  }
};

constexpr Name kInOrderName = name_of("skinny_mma_in_order_16x", skinny::kInOrderCols);

constexpr std::array<Variant, 1> in_order_variants() {
  Variant v = variant_of<InOrderFunctions>(kInOrderName, Family::kSkinny, kHalfTypes, kInOrderLine);
  v.min_cc = kHopper;
  v.max_cc = kHopper;
  v.sums = Sums::kInOrder;
  v.only_invariant = true;
  v.also_four_slices = true;
  return {v};
}

constexpr auto kVariants = concatenate(
    variants_of_list(skinny::kKernels, [](auto kernel) { return variants_of(kernel); }), in_order_variants());

}  // namespace

const VariantList kSkinnyVariants = kVariants;

}  // namespace hgemm
