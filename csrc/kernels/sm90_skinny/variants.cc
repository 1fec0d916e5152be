// The variants of sm90_skinny: which problems each one takes, its schedule, and its predicted time.
#include <algorithm>
#include <array>
#include <cstdint>
#include <tuple>

#include "core/cost.h"
#include "core/problem.h"
#include "core/short_side.h"
#include "core/slices.h"
#include "core/variant_list.h"
#include "kernels/sm90_skinny/config.h"
#include "kernels/sm90_skinny/int8_list.h"
#include "kernels/sm90_skinny/list.h"
#include "kernels/variants.h"
#include "tile/int8_operands.h"

namespace hgemm {
namespace {

using sm90_skinny::Release;
using sm90_skinny::Schedule;

/// The parameters of a kernel of list.h, as run-time values.
struct Line {
  Tile tile;  // bm: rows of W, bn: rows of x
  int smem_bytes;
  double rate;
  int max_splits;
  bool tiles_x, takes_mn_major_x;
};

// Measured on the H200.
constexpr double kFixedUs = 1.65, kFixedColUs = 0.012;  // start, first bytes, drain; more for each row of x
constexpr double kSumUs = 0.3;                          // to add up the slices
constexpr double kStepUs = 0.26, kStepColUs = 0.0018;   // 128 k of up to 64 rows of W in a block; for each row of x
constexpr double kDeepStepUs = 0.155, kDeepStepColUs = 0.001;  // the same with a ring that fills an SM
constexpr int kStepsPerSplit = 4;                              // k-tiles of a slice, at least
constexpr double kBlockUs = 2.1;                               // a block that waits for an SM: first bytes, drain
constexpr int kPrefetch = 2;                                   // stages of W
constexpr int64_t kLeastDeepRows = 16;                         // of a deep tile: tiles with fewer rows take as long
constexpr int64_t kLongK = 6144;                               // from this K on blocks end at different times
constexpr int kMostTiledCols = 512;                            // rows of x that a Tiled kernel takes
// Tiled kernels, fitted to 430 timings of shapes at random: one block at a time, without and with slices; a further one
// on the same SM; products of 128 k and 64 rows of x; GB/s that an SM, and all together, read from L2, in rows that
// begin on 128-byte lines and in others.
constexpr double kTiledFixedUs = 2.5, kTiledSumUs = 4.5, kTiledRoundUs = 3, kTiledStepUs = 0.17;
constexpr double kTiledGbs = 110, kTiledSplitGbs = 85, kL2Gbs = 10500, kL2SplitGbs = 6000;
// With slices, tiles of more than 64 rows of x take so much longer than by these (80 shapes at random).
constexpr double kWideSliced = 1.09;
constexpr double kElementStoreUs = 0.00012;  // of an SM, for each element of D where rows of D are not aligned

/// True if all rows of W and x begin on 128-byte lines. L2 serves other rows more slowly.
bool has_whole_lines(const ShortSide& sides) {
  return sides.ldw % 64 == 0 && sides.ldx % 64 == 0;
}

/// The time that a block takes for 128 k of a tile.
double step_us(const Problem& p, const Line& line, int64_t tile_rows, bool deep) {
  if (deep) {
    const int cols = std::max(line.tile.bn, 16);
    const double us = kDeepStepUs + kDeepStepColUs * cols;
    if (has_whole_lines(short_side_of(p))) return us;
    return std::max(us, static_cast<double>(tile_rows + cols) * 128 * 2 / (kTiledSplitGbs * 1e3));
  }
  return (kStepUs + kStepColUs * line.tile.bn) * static_cast<double>(std::max<int64_t>(tile_rows, 64)) / 64;
}

/// The time that `blocks` blocks at once take to read W in tiles of `tile_rows` rows, and to add up the slices.
double read_us(const Problem& p, const DeviceFacts& facts, const Line& line, int64_t blocks, int64_t tile_rows,
               int splits, bool deep = false) {
  const double block_gbs = static_cast<double>(tile_rows) * 128 * 2 / (step_us(p, line, tile_rows, deep) * 1e3);
  const double gbs = std::min(line.rate * dram_share(facts), static_cast<double>(blocks) * block_gbs);
  return dram_bytes(p) / (gbs * 1e3) + (splits > 1 ? kSumUs : 0.0);
}

/// The number of blocks that fit an SM at a time. CUDA reserves 1 KB of shared memory for each.
int resident(const DeviceFacts& facts, const Line& line) {
  return std::max(1, facts.smem_per_sm / (line.smem_bytes + sm90_skinny::kReservedSmem));
}

/// The number of slices of K with the least time to read the tiles. The GPU puts two blocks of a cluster of more than
/// two blocks on one SM, and other blocks then wait. Clusters of eight gain only where almost nothing else runs.
int splits_for(const Problem& p, const DeviceFacts& facts, const Line& line, int64_t tiles, int64_t steps) {
  const int64_t all = tiles * p.batches();
  int best = 1;
  double best_us = 0;
  for (int s : {1, 2, 4, 8}) {
    const bool room = s == 1 || (s <= facts.sm_count && (s == 2   ? all * 2 <= facts.sm_count
                                                         : s == 4 ? all <= clusters_at_once(facts, 4)
                                                                  : all <= 8));
    if (!room || (s > 1 && steps < s * kStepsPerSplit) || s > line.max_splits) break;
    const double us = read_us(p, facts, line, all * s, line.tile.bm, s);
    if (s == 1 || us < best_us) best = s, best_us = us;
  }
  return best;
}

/// The number of clusters of a Tiled kernel that run at a time. Its blocks fill an SM each.
int64_t tiled_at_once(const DeviceFacts& facts, int splits) {
  return splits == 1 ? facts.sm_count : clusters_at_once(facts, splits);
}

/// The schedule of a Tiled kernel: as many tiles as keep half of the SMs busy, or as fill whole waves.
Schedule tiled_schedule(const Problem& p, const DeviceFacts& facts, const Line& line) {
  const ShortSide sides = short_side_of(p);
  const int splits = sums_in_slices(p) ? kSlices : 1;
  const int64_t x_tiles = ceil_div(sides.cols, line.tile.bn), at_once = tiled_at_once(facts, splits);
  const int64_t columns = x_tiles * p.batches();  // of tiles, each as high as W
  int64_t tile_rows = line.tile.bm, tiles = ceil_div(sides.rows, tile_rows);
  if (p.batches() == 1 && sides.w_major == Major::kK) {
    const int64_t waves = ceil_div(tiles * columns, at_once);
    const int64_t wanted = tiles * columns * 2 < at_once ? at_once / 2 : waves * at_once;
    tile_rows = ceil_div(ceil_div(sides.rows, std::max<int64_t>(wanted / columns, 1)), 8) * 8;
    tile_rows = std::clamp<int64_t>(tile_rows, kLeastDeepRows, line.tile.bm);
    tiles = ceil_div(sides.rows, tile_rows);
  }
  const bool waves = tiles * columns > at_once;
  return {
      .tile_rows = static_cast<int>(tile_rows),
      .splits = splits,
      .blocks = static_cast<int>(waves && splits == 1 ? std::clamp<int64_t>(at_once / columns, 1, tiles) : tiles),
      .x_tiles = static_cast<int>(x_tiles),
      .deep = false,
      .prefetch = p.batches() == 1 ? kPrefetch : 0,
      .release = waves ? Release::kWithLastSums : Release::kWithLastLoads,
  };
}

Schedule schedule(const Problem& p, const DeviceFacts& facts, const Line& line) {
  if (line.tiles_x) return tiled_schedule(p, facts, line);
  const ShortSide sides = short_side_of(p);
  const bool k_major = sides.w_major == Major::kK;
  const int64_t steps = ceil_div(p.k, line.tile.bk), batches = p.batches();
  int64_t tile_rows = line.tile.bm, tiles = ceil_div(sides.rows, tile_rows);
  // How many slices pay off depends on the number of tiles, and so on M or N. Batch-invariant results use those of
  // core/slices.h or none: they are then summed in the same order as those of larger GEMMs.
  const bool is_fast = p.numerics == NumericsMode::kFast;
  const int splits = is_fast ? splits_for(p, facts, line, tiles, steps) : sums_in_slices(p) ? kSlices : 1;
  // Few tiles leave SMs idle. Tiles with fewer rows keep half of the SMs busy, and the blocks of the next kernel get
  // the others.
  if (!is_fast && line.tile.bm == 64 && batches == 1 && k_major && tiles * splits * 2 < facts.sm_count) {
    const int64_t rows = sides.rows * splits * 2;
    tile_rows = std::clamp(ceil_div(ceil_div(rows, facts.sm_count), 8) * 8, kLeastDeepRows, tile_rows);
    tiles = ceil_div(sides.rows, tile_rows);
  } else if (const int64_t narrow = ceil_div(sides.rows, sm90_skinny::kNarrowRows);
             !is_fast && line.tile.bm == 64 && batches == 1 && !k_major &&
             narrow <= (splits == 1 ? facts.sm_count / 2 : clusters_at_once(facts, splits))) {
    tile_rows = sm90_skinny::kNarrowRows;
    tiles = narrow;
  } else if (splits <= 2 && batches == 1 && k_major && tiles * splits * 2 >= facts.sm_count) {
    // Tiles with fewer rows fill the last wave, at the price of reading x more often.
    const int64_t wave = facts.sm_count / splits, waves = ceil_div(tiles, wave);
    tile_rows = std::clamp(ceil_div(ceil_div(sides.rows, waves * wave), 8) * 8, tile_rows - 56, tile_rows);
    tiles = ceil_div(sides.rows, tile_rows);
  }
  Schedule s{
      .tile_rows = static_cast<int>(tile_rows),
      .splits = splits,
      .blocks = static_cast<int>(tiles),
      .x_tiles = 1,
      .deep = false,
      .prefetch = 0,
      .release = Release::kAtOnce,
  };
  // Without slices a block has more to read, and often an SM to itself. All kernels then use the deep ring. If a kernel
  // of which two blocks fit an SM started beside a kernel whose blocks fill an SM each, the GPU would put two blocks of
  // the former on one SM while other SMs idle. With the slices of core/slices.h the ring is deep if all clusters have
  // SMs of their own.
  const bool is_alone = splits == 1 ? batches == 1 || tiles * batches <= facts.sm_count
                                    : tiles * batches <= clusters_at_once(facts, splits);
  s.deep = !is_fast && line.tile.bm == 64 && is_alone;
  if (batches > 1) return s;
  s.prefetch = kPrefetch;
  const bool waves = tiles * splits > facts.sm_count;
  // Persistent blocks load their next tile without a gap, if they have enough stages. Every SM gets one such block: on
  // an SM without one, two blocks of the next kernel would start. With slices a cluster has one tile.
  if (waves && splits == 1 && (s.deep || line.tile.stages > 4)) s.blocks = facts.sm_count;
  // The next kernel starts late, so that it loads while the last blocks of this one finish, and every SM is in the same
  // state: it still runs a block of this kernel and has room for one more. Where blocks end at different times, the
  // next kernel starts at once; otherwise two of its blocks would share an SM that this kernel has left. Where an SM
  // has no room for a second block, the next kernel waits until all blocks have ended.
  if (s.deep ? waves : resident(facts, line) == 1) {
    s.release = Release::kWithLastSums;
  } else if (!waves && (splits > 1 || s.deep || p.k <= kLongK)) {
    s.release = Release::kWithLastLoads;
  }
  return s;
}

bool eligible(const Problem& p, const Line& line, Reason* why) {
  if (!is_built_for_sm90a(why)) return false;
  const ShortSide sides = short_side_of(p);
  if (!has_short_side(p, line.tiles_x ? kMostTiledCols : line.tile.bn, 30, why)) return false;
  if (line.tiles_x && sides.cols <= 64) {
    return refuse(why, "M and N must be more than 64, got %lld and %lld", static_cast<long long>(p.m),
                  static_cast<long long>(p.n));
  }
  constexpr int64_t kMaxGridZ = 65535;
  if (line.tiles_x && ceil_div(sides.cols, line.tile.bn) * p.batches() > kMaxGridZ) {
    return refuse(why, "the batch has too many matrices, %lld", static_cast<long long>(p.batches()));
  }
  if (!line.takes_mn_major_x && sides.x_major != Major::kK) {
    return refuse(why, "the smaller operand must be contiguous along K: tiles have %d of its rows", line.tile.bn);
  }
  if (sums_in_slices(p) && line.max_splits < kSlices) {
    return refuse(why, "batch-invariant sums have %d slices of K here, the kernel takes at most %d", kSlices,
                  line.max_splits);
  }
  if (p.k == 0) return refuse(why, "K must be positive, got %lld", static_cast<long long>(p.k));
  if (alignment_a(p) < 16 || alignment_b(p) < 16) {
    return refuse(why, "rows of A and B must be 16-byte aligned, got %d and %d", alignment_a(p), alignment_b(p));
  }
  const auto overlaps = [&p](Major major, int64_t side, int64_t ld) {
    const bool k_major = major == Major::kK;
    return (k_major ? side : p.k) > 1 && ld < (k_major ? p.k : side);
  };
  if (overlaps(sides.w_major, sides.rows, sides.ldw) || overlaps(sides.x_major, sides.cols, sides.ldx)) {
    return refuse(why, "%s", "rows of A and B must not overlap");
  }
  return true;
}

/// True if the kernels of this family take the gated problem. A tile has four rows of one of W's matrices, the same
/// four rows of the other, and so on. Only these kernels gate results, and they do so before the results are rounded.
bool gates(const Problem& p) {
  const ShortSide sides = short_side_of(p);
  return p.numerics == NumericsMode::kFast && !sides.swapped && sides.w_major == Major::kK &&
         sides.x_major == Major::kK && p.n % 16 == 0 && p.batches() == 1 && p.bias == nullptr && p.c.data == nullptr &&
         p.pre_activation == nullptr && p.alpha == 1.0f;
}

/// The predicted time of a Tiled kernel: the longest of its tiles' products one after the other, their bytes from L2 to
/// an SM, and all bytes from L2 and from memory. L2 serves rows that begin inside of 128-byte lines more slowly.
double tiled_us(const Problem& p, const DeviceFacts& facts, const Line& line, const Schedule& s) {
  const ShortSide sides = short_side_of(p);
  const bool whole_lines = has_whole_lines(sides);
  const int64_t tiles = ceil_div(sides.rows, s.tile_rows) * s.x_tiles * p.batches();
  const double rounds = static_cast<double>(ceil_div(tiles, tiled_at_once(facts, s.splits)));
  const double steps = static_cast<double>(ceil_div(ceil_div(p.k, 128), s.splits));
  const double step_bytes = static_cast<double>(s.tile_rows + line.tile.bn) * 128 * 2;
  const double step_us = std::max(step_bytes / ((whole_lines ? kTiledGbs : kTiledSplitGbs) * 1e3),
                                  kTiledStepUs * std::max(line.tile.bn, 64) / 64);
  const double l2_us =
      static_cast<double>(tiles * s.splits) * steps * step_bytes / ((whole_lines ? kL2Gbs : kL2SplitGbs) * 1e3);
  const double memory_us = dram_bytes(p) / (line.rate * dram_share(facts) * 1e3);
  const double us = (s.splits > 1 ? kTiledSumUs : kTiledFixedUs) + (rounds - 1) * kTiledRoundUs +
                    std::max({rounds * steps * step_us, l2_us, memory_us});
  return s.splits > 1 && line.tile.bn > 64 ? kWideSliced * us : us;
}

/// The predicted time: the bytes at the kernel's rate, or at a lower rate if too few blocks or too short slices load
/// them. If not all blocks fit the device at a time, it is at least the time that an SM takes for its blocks, one after
/// the other.
double predict_us(const Problem& p, const DeviceFacts& facts, const Line& line) {
  const Schedule s = schedule(p, facts, line);
  if (line.tiles_x) return tiled_us(p, facts, line, s);
  const int64_t blocks = int64_t{s.blocks} * s.splits * p.batches();
  const double us =
      kFixedUs + kFixedColUs * line.tile.bn + read_us(p, facts, line, blocks, s.tile_rows, s.splits, s.deep);
  const int64_t rounds = ceil_div(blocks, int64_t{facts.sm_count} * (s.deep ? 1 : resident(facts, line)));
  if (rounds == 1) return us;
  const double steps = static_cast<double>(ceil_div(ceil_div(p.k, 128), s.splits));
  return std::max(us, static_cast<double>(rounds) * (kBlockUs + steps * step_us(p, line, s.tile_rows, s.deep)));
}

/// The predicted time of a 16-bit product. Where rows of D start at no multiples of 16 bytes, a lane stores two bytes
/// at a time instead of 16.
double half_us(const Problem& p, const DeviceFacts& facts, const Line& line) {
  const double of_sm = static_cast<double>(p.m * p.n * p.batches()) / facts.sm_count;
  return predict_us(p, facts, line) + (alignment_d(p) < 16 ? kElementStoreUs * of_sm : 0.0);
}

template <class C>
constexpr Line line_of(double rate) {
  return {
      .tile = {.bm = C::ROWS,
               .bn = C::COLS,
               .bk = C::BK,
               .stages = C::kRingBytes / (C::PANELS * (C::COLS + C::ROWS) * 128),
               .threads = C::kThreads},
      .smem_bytes = C::kSmemBytes,
      .rate = rate,
      .max_splits = C::kMaxSplits,
      .tiles_x = C::kTilesX,
      .takes_mn_major_x = C::kTakesMnMajorX,
  };
}

template <class C>
constexpr Line kLine = line_of<C>(std::get<sm90_skinny::Kernel<C>>(sm90_skinny::kKernels).rate);

/// A deep schedule for 8 columns runs the kernel for 16, because there is no deep one for 8.
using DeepOf8Columns = sm90_skinny::Config<64, 16, 2, 104>;
static_assert(DeepOf8Columns::kHasDeep && kLine<DeepOf8Columns>.rate > 0, "list.h declares it");

template <class C, DType kDType>
Status launch(const Problem& p, const Schedule& s, Stream stream) {
  if constexpr (C::COLS == 8) {
    if (s.deep && !p.gated) return call<&sm90_skinny::launch<DeepOf8Columns, kDType>>(p, s, stream);
  }
  return call<&sm90_skinny::launch<C, kDType>>(p, s, stream);
}

template <class C>
using Functions =
    ScheduledFunctions<kLine<C>, eligible, half_us, schedule, &launch<C, DType::kF16>, &launch<C, DType::kBF16>>;

template <class C>
constexpr Name kName = name_of("skinny_wgmma_", C::ROWS, "x", C::COLS, C::kTilesX ? "_tiled" : "");

template <class C>
constexpr auto variants_of(const sm90_skinny::Kernel<C>&) {
  Variant v = variant_of<Functions<C>>(kName<C>, Family::kSm90Skinny, kHalfTypes, kLine<C>);
  v.min_cc = kHopper;
  v.max_cc = kHopper;
  if (!C::kTilesX) v.gates = gates;
  v.sums = Sums::kInOrder;
  v.only_invariant = C::kTilesX;
  v.also_four_slices = kLine<C>.max_splits >= kSlices;
  return std::array{v};
}

constexpr auto kVariants = variants_of_list(sm90_skinny::kKernels, [](auto kernel) { return variants_of(kernel); });

/// An int8 kernel; tile/int8_operands.h says what the members are.
template <class C>
struct Int8Kernel {
  static constexpr Line kItsLine = line_of<C>(std::get<sm90_skinny::Kernel<C>>(sm90_skinny::int8::kKernels).rate);
  static constexpr bool kTransposesB = C::PARTS > 1;
  static constexpr Name kItsName = name_of("int8_skinny_wgmma_", kItsLine.tile.bm, "x", kItsLine.tile.bn, "_s",
                                           kItsLine.tile.stages, kTransposesB ? "_nn" : "");
  static constexpr int kTileM = kItsLine.tile.bn, kTileN = kItsLine.tile.bm;

  static bool takes(const Problem& p, Reason* why) {
    if constexpr (!kTransposesB) return eligible(p, kItsLine, why);
    if (!has_short_side(p, kItsLine.tile.bn, 30, why)) return false;
    return p.m <= p.n || refuse(why, "M must be at most N, got %lld and %lld", static_cast<long long>(p.m),
                                static_cast<long long>(p.n));
  }
  static int64_t at_once(const DeviceFacts& facts) { return facts.sm_count; }
  static double predict_us(const Problem& p, const DeviceFacts& facts) { return hgemm::predict_us(p, facts, kItsLine); }
  static Status launch(const Problem& p, const DeviceFacts& facts, Stream stream) {
    return call<&sm90_skinny::launch_int8<C>>(p, schedule(p, facts, kItsLine), stream);
  }
};

template <class C>
constexpr auto int8_variants_of(const sm90_skinny::Kernel<C>&) {
  using Kernel = Int8Kernel<C>;
  Tile tile = Kernel::kItsLine.tile;
  tile.bk *= 2;
  return std::array{tile::int8_variant<Kernel>(Kernel::kItsName, tile, Kernel::kItsLine.smem_bytes, {})};
}

constexpr auto kInt8Variants =
    variants_of_list(sm90_skinny::int8::kKernels, [](auto kernel) { return int8_variants_of(kernel); });

}  // namespace

const VariantList kSm90SkinnyVariants = kVariants;
const VariantList kSm90SkinnyInt8Variants = kInt8Variants;

}  // namespace hgemm
