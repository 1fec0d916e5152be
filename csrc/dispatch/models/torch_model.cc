#include "dispatch/models/torch_model.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <limits>

#include "core/ceil_div.h"
#include "core/chip.h"
#include "core/cost.h"
#include "core/short_side.h"

namespace hgemm {
namespace {

// Fitted to the 294 aligned shapes of more than 64 rows and columns in the H200's table: mean error 6.7 %, worst 28 %.
// cuBLAS has tiles of almost any multiple of 8, as its kernels' names show. The tiles below leave as little of a wave
// unused as cuBLAS's do, which decides the time between 129 and 511 rows.
constexpr int kTileRows[] = {64, 128, 192}, kTileColumns[] = {64, 96, 128, 144, 160, 176, 192, 256};
constexpr int kTallTile[] = {256, 128};
constexpr int kMostSplits = 8;
constexpr double kSustained = 0.85;    // share of the tensor peak at the sustained clock, for an infinitely large tile
constexpr double kEdge = 6.2;          // the BM * BN / (BM + BN) of a tile that reaches half of that rate
constexpr double kStartUs = 2.2;       // launch, pipeline fill and drain
constexpr double kTileUs = 0.52;       // prologue and epilogue of one tile
constexpr double kSplitUs = 0.6;       // the reduction of split-K
constexpr double kSplitWeight = 1.7;   // cost of a byte of partial sums, relative to a byte of a read stream
constexpr int64_t kLeastSplitK = 512;  // the least K of one split
constexpr double kWriteWeight = 1.15;  // cost of a written byte, relative to a read byte
constexpr double kStreamShare = 0.89;  // share of the read bandwidth: 4.1 of 4.6 TB/s

// For misaligned operands cuBLAS takes kernels of an older generation with narrow loads, 94-150 TFLOP/s on the H200.
// These are FLOPs per clock and SM, from 4095^3, 4097^3, 4096x4097x4096, 1024x50257x768.
constexpr double kRaggedK = 645;       // B is K-major (NT, TT)
constexpr double kRaggedMN = 740;      // B is N-major (NN, TN)
constexpr double kRaggedResult = 465;  // A and B are aligned, D is not
constexpr double kRaggedStreamShare = 0.65;

// float32 with few rows or columns: the GB/s at which torch reads the long operand, for at most `rows` rows. Fitted to
// torch 2.11's times on the H200 (1024..32000 x 4096, 4096 x 14336; NT, NN; 1 to 64 rows). cuBLAS's choice among its
// kernels jumps, which changes the time up to threefold. The model underestimates two of three measured times, on
// purpose: a kernel of ours must not win because of a bad choice that another version of torch may not make. Few
// columns, and few rows that lie along M, were not timed. For these the model takes the faster of the two rates.
struct FloatRates {
  int64_t rows;
  double k_major, mn_major;  // by the layout of the long operand
};
constexpr FloatRates kFloatRates[] = {{1, 4200, 4300},  {2, 3450, 2800},  {4, 3000, 2700}, {8, 2050, 2400},
                                      {16, 1950, 2110}, {32, 1770, 2270}, {64, 1420, 1420}};
constexpr int64_t kFewRows = 64;
constexpr double kFloatStartUs = 3.0;
// float32 with K split: parts, and k of a part. If M and N are kLeastOfBoth to kFewOfBoth, K decides from kLongFloatK
// on.
constexpr int kMostFloatSplits = 64;
constexpr int64_t kLeastFloatSplitK = 256, kLeastOfBoth = 32, kFewOfBoth = 128, kLongFloatK = 4096;
// float32 with short K and large matrices, against what the model of larger K gives: 1.5 to 1.7 times as long up to 32,
// 1.25 and more up to 64. Batches with K-major operands take 1.4 times as long up to 128.
constexpr int64_t kShortestFloatK = 32, kShorterFloatK = 64, kShortFloatK = 128, kLeastShortRows = 256;
constexpr double kShortestFloat = 1.5, kShorterFloat = 1.25, kShortFloatNt = 1.38;
// Microseconds for each k of a block's loop along K, except in matrix-vector products. From kMostFloatK on cuBLAS
// splits K, and the loop gets no longer.
constexpr double kFloatPerK = 1.2e-3;
constexpr double kMostFloatK = 8192;
// With 2 to 4 rows and an MN-major long operand of more than kManyLongRows rows, the rate is higher by
// kManyLongRowsShare: 32000 x 4096 is read at 4.0 TB/s.
constexpr int64_t kManyLongRows = 16384;
constexpr double kManyLongRowsShare = 1.4;
// A K-major matrix times a vector takes kVectorUs longer from kVectorBytes on, and proportionally less below. This does
// not apply where K is longer than kMostFloatK. torch takes 22.4 us at 4096 x 4096 and 29.5 us at 6144 x 4096
// (float32-rows.json); the model then predicts 21.4 and 29.4.
constexpr double kVectorUs = 2.4, kVectorBytes = 64e6;

// complex64, as a share of what the model gives for the real form in float32. On an H200 torch takes 0.81 to 1.1 of
// that. Too few times are known for few rows or columns, and for short products: these get the time of their memory
// traffic.
constexpr double kComplexShare = 0.84, kLeastComplexUs = 30;
constexpr int64_t kLeastComplexRows = 128;

// Tiny batches: nanoseconds of one matrix, by its k. The rates are close to the lowest that were measured on an H100
// and an H200 with torch 2.11 in float32 and float16 (kernels/tiny_batch/NOTES.md). At sizes between them torch takes
// up to 2.5 times as long, because cuBLAS's choice among its kernels jumps. For other chips the rates are scaled by the
// number of SMs and the clock.
constexpr double kTinyStartUs = 2.5, kTinyStreamShare = 0.93;
struct TinyRates {
  int64_t k;   // the largest k that the rates apply to
  double f32;  // float32
  // 16-bit operands whose rows are aligned to 16 bytes, to 4 or 8, and to 2.
  double whole, even, odd;
};
constexpr TinyRates kTinyRates[] = {{8, 1.72, 3.0, 0.72, 1.64}, {16, 2.3, 3.0, 0.72, 1.64}, {32, 3.0, 3.0, 1.55, 3.5}};
// Nanoseconds of one matrix of a batch, with M, N and K up to 16. torch 2.11 takes 3.1 to 13 ns in float64 and 3.6 to
// 9 ns in complex64; with one row, column or k 0.8 to 1 ns and 0.6 to 1 ns.
constexpr double kTinyF64 = 3.0, kTinyC64 = 3.4;
constexpr double kTinyVectorF64 = 0.75, kTinyVectorC64 = 0.55;
constexpr int64_t kMostWide = 16;
// Batches of vectors by small matrices, float32: GB/s at which torch reads the matrices, on the H200. It reads those of
// 40x40 to 100x100 at 1950 to 2360.
constexpr double kVectorBatchRate = 2500;
constexpr double kTinyVectorF32 = 0.83, kTinyVectorHalf = 0.65;  // one row or column

// int8 products, fitted to 128 times of an H200 with torch 2.11 (70 NT, 58 NN). torch runs whole waves of the tiles
// below, one tile to an SM, never splits K, and writes the results after the math. If B is row-major, it runs another
// kernel, at a seventh of the speed.
constexpr double kInt8StartUs = 3.0, kInt8StreamShare = 0.75;
struct Int8Tile {
  int rows, columns;
  double step_us;  // 128 k
};
constexpr Int8Tile kInt8Tiles[] = {{64, 64, 0.25}, {64, 128, 0.42}, {128, 128, 0.58}};
constexpr Int8Tile kInt8TilesMN[] = {{128, 128, 4.1}};

double us_per_flop(double flops_per_clk, const Chip& chip) {
  return 1.0 / (flops_per_clk * chip.clock_ghz * 1e3);
}

int64_t tile_count(const Problem& p, int bm, int bn) {
  return ceil_div(p.m, bm) * ceil_div(p.n, bn) * p.batches();
}

double waves(int64_t tiles, const DeviceFacts& facts) {
  return static_cast<double>(ceil_div(tiles, facts.sm_count));
}

double stream_us(const Problem& p, const DeviceFacts& facts, double share) {
  const double results = static_cast<double>(p.m) * p.n * p.batches() * dtype_bytes(p.out_dtype);
  // The activation's own pass writes the second result of linear_save: torch_epilogue_us.
  const double bytes = dram_bytes(p) + (kWriteWeight - 1.0) * results - (p.pre_activation ? results : 0.0);
  // Short reads do not reach the bandwidth: 1.4 us more from 16 MB on.
  return 2.6 + 1.4 * std::min(1.0, bytes / 16e6) + bytes / (dram_gbs(facts) * 1e3 * share);
}

/// The time of `tiles` tiles of `tile_us` each, with the number of splits of K that is the fastest. Partial
/// sums move at `bytes_per_us`.
double sliced_us(const Problem& p, const DeviceFacts& facts, int64_t tiles, double tile_us, double bytes_per_us,
                 int most_splits = kMostSplits, int64_t least_k = kLeastSplitK) {
  const double results = static_cast<double>(p.m) * p.n * p.batches();
  double best = waves(tiles, facts) * (tile_us + kTileUs);
  for (int splits = 2; splits <= most_splits; splits *= 2) {
    // With four waves the SMs are evenly loaded without split-K.
    if (p.k < splits * least_k || tiles * splits > 4 * facts.sm_count) break;
    const double us = waves(tiles * splits, facts) * (tile_us / splits + kTileUs);
    best = std::min(best, us + (kSplitUs + kSplitWeight * results * 4 * splits / bytes_per_us));
  }
  return best;
}

/// The rate at which torch's kernels read and write memory, in bytes per microsecond.
double stream_rate(const DeviceFacts& facts) {
  return dram_gbs(facts) * 1e3 * kStreamShare;
}

double aligned_us(const Problem& p, const DeviceFacts& facts, const Chip& chip) {
  const double per_flop = us_per_flop(chip.peak_flops * kSustained, chip), bytes_per_us = stream_rate(facts);
  double best = std::numeric_limits<double>::infinity();
  const auto consider = [&](int bm, int bn, int64_t tiles) {
    const double area = static_cast<double>(bm) * bn, edge = area / (bm + bn);
    const double tile_us = 2.0 * area * static_cast<double>(p.k) * per_flop * (1 + kEdge / edge);
    best = std::min(best, sliced_us(p, facts, tiles, tile_us, bytes_per_us));
  };
  int64_t across[std::size(kTileColumns)];
  std::transform(std::begin(kTileColumns), std::end(kTileColumns), across, [&p](int bn) { return ceil_div(p.n, bn); });
  for (int bm : kTileRows) {
    const int64_t down = ceil_div(p.m, bm) * p.batches();
    for (size_t i = 0; i < std::size(kTileColumns); ++i) consider(bm, kTileColumns[i], down * across[i]);
  }
  consider(kTallTile[0], kTallTile[1], tile_count(p, kTallTile[0], kTallTile[1]));
  return std::max(kStartUs + best, stream_us(p, facts, kStreamShare));
}

double flat_rate_us(const Problem& p, const DeviceFacts& facts, const Chip& chip, double flops_per_clk) {
  const double per_flop = us_per_flop(flops_per_clk, chip);
  double best = std::numeric_limits<double>::infinity();
  for (int tile : {128, 64}) {
    const double tile_us = 2.0 * tile * tile * static_cast<double>(p.k) * per_flop;
    best = std::min(best, waves(tile_count(p, tile, tile), facts) * tile_us);
  }
  return kStartUs + best;
}

/// float32 on CUDA cores, without TF32. It lies below nearly all of 50 times that were measured (kernels/NOTES.md).
double float32_us(const Problem& p, const DeviceFacts& facts, const Chip& chip) {
  const double per_flop = us_per_flop(0.95 * chip.simt_flops, chip);
  double best = std::numeric_limits<double>::infinity();
  for (int tile : {128, 64}) {
    const double tile_us = 2.0 * tile * tile * static_cast<double>(p.k) * per_flop;
    const int64_t tiles = tile_count(p, tile, tile);
    const double us = sliced_us(p, facts, tiles, tile_us, stream_rate(facts), kMostFloatSplits, kLeastFloatSplitK);
    best = std::min(best, us);
  }
  const double us = std::max(kStartUs + best, stream_us(p, facts, kStreamShare));
  if (p.k > kShortFloatK || std::min(p.m, p.n) < kLeastShortRows) return us;
  const bool is_nt = p.batches() > 1 && p.a_major() == Major::kK && p.b_major() == Major::kK;
  const double by_k = p.k <= kShortestFloatK ? kShortestFloat : p.k <= kShorterFloatK ? kShorterFloat : 1.0;
  return us * std::max(by_k, is_nt ? kShortFloatNt : 1.0);
}

double ragged_us(const Problem& p, const DeviceFacts& facts, const Chip& chip, const Alignments& alignments) {
  const bool only_result = alignments.a >= 16 && alignments.b >= 16;
  const double rate = only_result ? kRaggedResult : p.b_major() == Major::kK ? kRaggedK : kRaggedMN;
  return std::max(stream_us(p, facts, kRaggedStreamShare),
                  flat_rate_us(p, facts, chip, std::min(rate, 0.6 * chip.mma_flops)));
}

/// float32 with at most kFewRows rows or columns.
double few_rows_us(const Problem& p, const DeviceFacts& facts, const Chip& chip) {
  const ShortSide roles = short_side_of(p);
  const FloatRates* rates = kFloatRates;
  while (rates->rows < roles.cols) ++rates;
  double rate = roles.w_major == Major::kK ? rates->k_major : rates->mn_major;
  if (roles.swapped || roles.x_major != Major::kK) rate = std::max(rates->k_major, rates->mn_major);
  if (roles.w_major == Major::kMN && roles.rows > kManyLongRows && roles.cols > 1 && roles.cols <= 4) {
    rate *= kManyLongRowsShare;
  }
  const double k = static_cast<double>(p.k), results = static_cast<double>(p.m) * p.n * p.batches();
  const double all = dram_bytes(p), w = std::min(all, static_cast<double>(roles.rows) * k * p.batches() * 4);
  double start = kFloatStartUs;
  if (roles.cols > 1) {
    start += kFloatPerK * std::min(k, kMostFloatK);
  } else if (roles.w_major == Major::kK && !roles.swapped && k <= kMostFloatK) {
    start += kVectorUs * std::min(w / kVectorBytes, 1.0);
  }
  if (is_vector_batch(p)) return start + all / (kVectorBatchRate * dram_share(facts) * 1e3);
  const double us = start + w / (rate * dram_share(facts) * 1e3) + (all - w) / (dram_gbs(facts) * kStreamShare * 1e3);
  return std::max(us, 2.0 * results * k * us_per_flop(0.95 * chip.simt_flops, chip) / facts.sm_count);
}

/// float64 where cuBLAS runs on tensor cores that are as fast as the CUDA cores are in float32. The learned model knows
/// torch's time of these products.
bool is_timed_float64(const Problem& p, const DeviceFacts& facts) {
  return p.dtype == DType::kF64 && facts.cc == 90 && !facts.slow_float64 && std::min(p.m, p.n) > 1;
}

/// float64 and complex types where torch was not timed: the time of the memory traffic alone, which no kernel of ours
/// beats, so that torch computes the product.
double least_us(const Problem& p, const DeviceFacts& facts) {
  return kTinyStartUs + dram_bytes(p) / (dram_gbs(facts) * 1e3);
}

/// A batch of many tiny matmuls. cuBLAS takes a time per matrix, which memory traffic hides in part.
double tiny_batch_us(const Problem& p, const DeviceFacts& facts, const Chip& chip, const Alignments& alignments) {
  const bool is_half = p.is_half();
  const TinyRates* rates = kTinyRates;
  while (rates->k < p.k) ++rates;
  const int aligned = alignments.least();
  if (is_wide(p.dtype) && std::max({p.m, p.n, p.k}) > kMostWide) return least_us(p, facts);
  double ns = !is_half ? rates->f32 : aligned >= 16 ? rates->whole : aligned >= 4 ? rates->even : rates->odd;
  if (p.m == 1 || p.n == 1) ns = is_half ? kTinyVectorHalf : kTinyVectorF32;
  if (is_wide(p.dtype)) {
    const bool is_double = p.dtype == DType::kF64;
    ns = is_double ? kTinyF64 : kTinyC64;
    if (std::min({p.m, p.n, p.k}) <= 1) ns = is_double ? kTinyVectorF64 : kTinyVectorC64;
  }
  const Chip& timed = chip_of(90);
  const double speed = facts.sm_count * chip.clock_ghz / (timed.facts.sm_count * timed.clock_ghz);
  const double matrices_us = ns * 1e-3 * static_cast<double>(p.batches()) / speed;
  const double memory_us = dram_bytes(p) / (dram_gbs(facts) * 1e3 * kTinyStreamShare);
  // Not std::hypot, which would need glibc 2.35: Red Hat Enterprise Linux 9 has 2.34.
  return kTinyStartUs + std::sqrt(matrices_us * matrices_us + memory_us * memory_us);
}

/// An int8 product takes its waves of the tile that is the fastest, or longer to read the operands, and then the time
/// to write the results.
double int8_us(const Problem& p, const DeviceFacts& facts) {
  const auto waves_us = [&](const auto& tiles) {
    double best = std::numeric_limits<double>::infinity();
    for (const Int8Tile& tile : tiles) {
      best = std::min(best, waves(tile_count(p, tile.rows, tile.columns), facts) * tile.step_us);
    }
    return static_cast<double>(p.k) / 128 * best;
  };
  const double math_us = p.b_major() == Major::kK ? waves_us(kInt8Tiles) : waves_us(kInt8TilesMN);
  const double bytes_per_us = 1e3 * dram_gbs(facts) * kInt8StreamShare;
  const double read_us = static_cast<double>(p.k) * static_cast<double>(p.m + p.n) / bytes_per_us;
  const double write_us = 4.0 * static_cast<double>(p.m) * static_cast<double>(p.n) / bytes_per_us;
  return kInt8StartUs + std::max(math_us, read_us) + write_us;
}

/// A matrix-vector kernel, which has no tiles that compute rows beyond the one that is needed.
double vector_us(const Problem& p, const DeviceFacts& facts, bool aligned) {
  return std::max(stream_us(p, facts, aligned ? kStreamShare : kRaggedStreamShare), kStartUs + kTileUs);
}

}  // namespace

double torch_product_us(const Problem& p, const DeviceFacts& facts, const Alignments& alignments) {
  if (p.dtype == DType::kI8) return int8_us(p, facts);
  const Chip& chip = chip_of(facts.cc);
  if (is_tiny_batch(p)) return tiny_batch_us(p, facts, chip, alignments);
  if (p.dtype == DType::kC64 && std::min(p.m, p.n) >= kLeastComplexRows) {
    const double us = kComplexShare * float32_us(real_form(p), facts, chip);
    return us >= kLeastComplexUs ? us : least_us(p, facts);
  }
  if (is_wide(p.dtype)) return is_timed_float64(p, facts) ? float32_us(p, facts, chip) : least_us(p, facts);
  if (p.dtype == DType::kF32 && std::min(p.m, p.n) <= kFewRows) {
    const bool both_are_few = p.k >= kLongFloatK && p.batches() == 1 && std::min(p.m, p.n) >= kLeastOfBoth &&
                              std::max(p.m, p.n) <= kFewOfBoth;
    return both_are_few ? float32_us(p, facts, chip) : few_rows_us(p, facts, chip);
  }
  const bool aligned = alignments.all_whole();
  if (p.m == 1 || p.n == 1) return vector_us(p, facts, aligned);
  if (p.dtype == DType::kF32) return float32_us(p, facts, chip);
  return aligned ? aligned_us(p, facts, chip) : ragged_us(p, facts, chip, alignments);
}

double torch_epilogue_us(const Problem& p, const DeviceFacts& facts) {
  const double pass_us = [&] {  // an elementwise kernel: reads and writes the result
    const double results = static_cast<double>(p.m) * p.n * p.batches() * dtype_bytes(p.out_dtype);
    return 1.2 + results * 2 * kWriteWeight / (dram_gbs(facts) * 1e3);
  }();
  const int passes = (p.act != Activation::kNone) + (p.c.data != nullptr);
  return passes * pass_us;
}

}  // namespace hgemm
