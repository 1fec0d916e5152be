// The variants of batched_mma: which problems each one can run, with how many blocks, and its predicted time.
#include <algorithm>
#include <array>
#include <cstdint>
#include <tuple>

#include "core/chip.h"
#include "core/cost.h"
#include "core/problem.h"
#include "core/variant_list.h"
#include "core/whole_batch.h"
#include "kernels/batched_mma/config.h"
#include "kernels/batched_mma/list.h"
#include "kernels/variants.h"

namespace hgemm {
namespace {

using batched_mma::Schedule;

/// A kernel of list.h as plain values.
struct Line {
  Tile tile;            // bm and bn: the largest M and N
  int smem_bytes;       // at most, over all memory orders and alignments
  int wide_smem_bytes;  // where both operands are wide
  int problems;         // problems that a block works on at a time
  int resident;         // blocks per SM, as limited by registers
  bool always_narrow;   // the kernel reads wide operands as it reads others
  bool takes_whole;     // matrices without gaps are copied whole
};

// Measured on the H200.
constexpr double kFixedUs = 2.0;      // launch, first loads, drain
constexpr double kStreamShare = 0.9;  // share of the read bandwidth that the kernel reaches
constexpr double kStepUs = 0.5;       // each k-tile after the first, if one is in flight
// Microseconds of an SM for each problem, for 16 k of 16 rows and 16 columns of the tile, and for as much of unaligned
// operands in addition.
constexpr double kProblemUs = 0.03;
constexpr double kTileUs = 0.02;
constexpr double kNarrowUs = 0.1;
// At least, where all read the same aligned A or B at once: of 8 x 8 and 16 x 16 in batches of 20,000 and 50,000.
// Larger ones were not timed, and are left as they are.
constexpr double kSharedUs = 0.4;
// Matrices that are copied whole: for the launch, and nanoseconds of the chip for each matrix, for each 100 chunks of
// eight elements that are moved to its tiles, and for each 1,000 results. Fitted to 67 batches of 2,000 matrices or
// more (11 % off, root mean square).
constexpr double kWholeUs = 4.0;
constexpr double kWholeNs = 2.2, kWholeChunksNs = 0.48, kWholeResultsNs = 0.43;
constexpr int kFittedSms = 132;
// Where tiles take the place of the matrices: microseconds for the launch, and of an SM for each block that it computes
// alone, for each 100 chunks of eight elements, for each 1,000 results, and for 16 k of 16 rows and 16 columns of D,
// 100 times. Of the work, a single warp would take longer by a factor of 1 + kInPlaceWaits. Fitted to 183 times of
// three kernels at 102 shapes (11 % off, root mean square; 11 % also at shapes that were left out).
constexpr double kInPlaceUs = 2.13, kInPlaceBlockUs = 1.71;
constexpr double kInPlaceChunksUs = 0.0858, kInPlaceResultsUs = 0.118, kInPlaceStepsUs = 0.0601, kInPlaceWaits = 1.0;
// On other chips than Hopper these kernels were not timed. There they are predicted to take this much longer.
constexpr double kInPlaceDoubt = 2.5;

/// Whether the kernel reads both operands as wide ones.
bool reads_wide(const Problem& p, const Line& line) {
  return !line.always_narrow && batched_mma::is_wide(p);
}

/// Blocks that are resident on the device at the same time.
int64_t block_slots(const Problem& p, const DeviceFacts& facts, const Line& line) {
  const int smem_bytes = reads_wide(p, line) ? line.wide_smem_bytes : line.smem_bytes;
  return int64_t{facts.sm_count} * std::min(line.resident, resident_ctas(facts, smem_bytes, line.tile.threads, 64));
}

/// Whether the kernel that copies whole matrices runs.
bool copies_whole(const Problem& p, const Line& line) {
  return line.takes_whole && is_whole_batch(p);
}

Schedule schedule(const Problem& p, const DeviceFacts& facts, const Line& line) {
  const bool dependent = has_dependent_launch(facts.cc);
  if (copies_whole(p, line)) {
    using Whole = batched_mma::Whole64;
    constexpr int kRegisters = 65536 / (Whole::kThreads * Whole::RESIDENT);
    const int64_t slots =
        int64_t{facts.sm_count} * resident_ctas(facts, Whole::kSmemBytes, Whole::kThreads, kRegisters);
    return {static_cast<int>(std::min(p.batches(), slots)), true, dependent};
  }
  const int64_t blocks = std::min(ceil_div(p.batches(), line.problems), block_slots(p, facts, line));
  return {static_cast<int>(blocks), false, dependent};
}

bool eligible(const Problem& p, const Line& line, Reason* why) {
  if (p.m > line.tile.bm || p.n > line.tile.bn) {
    return refuse(why, "M and N must be at most %d and %d, got %lld and %lld", line.tile.bm, line.tile.bn,
                  static_cast<long long>(p.m), static_cast<long long>(p.n));
  }
  if (p.k > kMaxExtent) return refuse(why, "K must be at most 2^30, got %lld", static_cast<long long>(p.k));
  if (p.batches() > INT32_MAX) {
    return refuse(why, "a batch must have at most 2^31 - 1 matrices, got %lld", static_cast<long long>(p.batches()));
  }
  return true;
}

/// The time of a batch whose matrices are copied whole.
double predict_whole_us(const Problem& p, const DeviceFacts& facts) {
  const auto chunks = [&p](Major major, int64_t extent) {
    const int64_t k = ceil_div(p.k, 16) * 16;
    return static_cast<double>(major == Major::kK ? extent * k / 8 : ceil_div(extent, 8) * k);
  };
  const double moved = chunks(p.a_major(), p.m) + chunks(p.b_major(), p.n), results = static_cast<double>(p.m * p.n);
  const double each_ns = kWholeNs + moved / 100 * kWholeChunksNs + results / 1000 * kWholeResultsNs;
  const double busy = static_cast<double>(p.batches()) * each_ns * 1e-3 * kFittedSms / std::max(1, facts.sm_count);
  return kWholeUs + std::max(busy, dram_bytes(p) / (dram_gbs(facts) * 1e3 * kStreamShare));
}

/// Returns the longer of the time of memory and that of instructions, plus the latency of the k-tiles, which only the
/// other blocks of an SM hide.
double predict_us(const Problem& p, const DeviceFacts& facts, const Line& line) {
  if (copies_whole(p, line)) return predict_whole_us(p, facts);
  const double k16 = static_cast<double>(ceil_div(p.k, 16)), extents = static_cast<double>(p.m + p.n);
  const double steps = static_cast<double>(std::max<int64_t>(0, ceil_div(p.k, line.tile.bk) - 1));
  double problem_us = kProblemUs + k16 / 32 * (line.tile.bm + line.tile.bn) * kTileUs +
                      (reads_wide(p, line) ? 0.0 : k16 / 32 * extents * kNarrowUs);
  if (is_tiny_batch(p) && shares_operand(p) && batched_mma::is_wide(p)) problem_us = std::max(problem_us, kSharedUs);
  const double rounds = static_cast<double>(ceil_div(p.batches(), facts.sm_count));
  const double memory = dram_bytes(p) / (dram_gbs(facts) * 1e3 * kStreamShare);
  return kFixedUs + std::max(memory, problem_us * rounds) + steps * kStepUs / (line.tile.stages - 1);
}

/// A kernel of list.h whose tiles take the place of the matrices, as plain values.
struct InPlaceLine {
  Tile tile;       // bm and bn: the largest M and N
  int smem_bytes;  // as a minimum: eligible() knows how many a problem needs
  int resident;    // blocks per SM, as limited by registers
  int most_chunks;
};

/// Bytes of shared memory that a block may have.
int most_smem(const DeviceFacts& facts) {
  return facts.smem_optin;
}

bool in_place_eligible(const Problem& p, const DeviceFacts& facts, const InPlaceLine& line, Reason* why) {
  if (std::max({p.m, p.n, p.k}) > batched_mma::kInPlaceSide || std::min({p.m, p.n, p.k}) < 1) {
    return refuse(why, "M, N and K must be 1 to %d, got %lld, %lld and %lld", batched_mma::kInPlaceSide,
                  static_cast<long long>(p.m), static_cast<long long>(p.n), static_cast<long long>(p.k));
  }
  if (!has_no_gaps(p))
    return refuse(why, "%s", "needs matrices without gaps between their rows, and no epilogue but alpha");
  if (has_whole_chunks(p)) return refuse(why, "%s", "is for operands that do not consist of aligned 16-byte chunks");
  if (p.batches() > INT32_MAX) {
    return refuse(why, "a batch must have at most 2^31 - 1 matrices, got %lld", static_cast<long long>(p.batches()));
  }
  const batched_mma::InPlaceTiles tiles = batched_mma::in_place_tiles(p);
  if (tiles.bytes > most_smem(facts)) {
    return refuse(why, "a matrix takes %d bytes of shared memory, and a block has %d", tiles.bytes, most_smem(facts));
  }
  const int chunks = std::max(tiles.x.rows * tiles.x.chunks, tiles.y.rows * tiles.y.chunks);
  return chunks <= line.most_chunks ||
         refuse(why, "an operand has %d chunks of 8 elements, and a block moves at most %d", chunks, line.most_chunks);
}

Schedule in_place_schedule(const Problem& p, const DeviceFacts& facts, const InPlaceLine& line) {
  const int registers = 65536 / (line.tile.threads * line.resident);
  const int64_t slots = int64_t{facts.sm_count} *
                        resident_ctas(facts, batched_mma::in_place_tiles(p).bytes, line.tile.threads, registers);
  return {static_cast<int>(std::min(p.batches(), slots)), false, has_dependent_launch(facts.cc), most_smem(facts)};
}

double predict_in_place_us(const Problem& p, const DeviceFacts& facts, const InPlaceLine& line) {
  const batched_mma::InPlaceTiles tiles = batched_mma::in_place_tiles(p);
  const double moved = tiles.x.rows * tiles.x.chunks + tiles.y.rows * tiles.y.chunks;
  const double results = static_cast<double>(p.m * p.n);
  const double steps =
      static_cast<double>(ceil_div(p.k, 16) * ceil_div(tiles.x.outer, 16) * ceil_div(tiles.y.outer, 16));
  const double work =
      moved / 100 * kInPlaceChunksUs + results / 1000 * kInPlaceResultsUs + steps / 100 * kInPlaceStepsUs;
  // Blocks of an SM hide each other's latency, and warps that of each other.
  const double most = std::min(line.resident, resident_ctas(facts, tiles.bytes, line.tile.threads, 64));
  const double blocks = std::min(most, std::max(1.0, static_cast<double>(p.batches()) / facts.sm_count));
  const double warps = blocks * line.tile.threads / 32;
  const double each_us = work * (1 + kInPlaceWaits / warps) + kInPlaceBlockUs / blocks;
  const double busy = static_cast<double>(ceil_div(p.batches(), int64_t{facts.sm_count})) * each_us;
  const double us = kInPlaceUs + std::max(busy, dram_bytes(p) / (dram_gbs(facts) * 1e3 * kStreamShare));
  return facts.cc == kHopper ? us : us * kInPlaceDoubt;
}

template <class C>
constexpr Line line_of() {
  constexpr auto kK = Major::kK, kMN = Major::kMN;
  return {
      .tile = {.bm = C::BM, .bn = C::BN, .bk = C::BK, .stages = C::STAGES, .threads = C::kThreads},
      .smem_bytes =
          std::max({C::smem_bytes(kK, kK, true), C::smem_bytes(kK, kMN, true), C::smem_bytes(kMN, kMN, true)}),
      .wide_smem_bytes = C::smem_bytes(kK, kK, false),
      .problems = C::PROBLEMS,
      .resident = C::RESIDENT,
      .always_narrow = C::kIsAlwaysNarrow,
      .takes_whole = C::kTakesWhole,
  };
}
template <class C>
constexpr Line kLine = line_of<C>();

template <class C>
constexpr InPlaceLine kInPlaceLine{
    .tile = {.bm = batched_mma::kInPlaceSide,
             .bn = batched_mma::kInPlaceSide,
             .bk = batched_mma::kInPlaceSide,
             .stages = 1,
             .threads = C::kThreads},
    .smem_bytes = 48 << 10,
    .resident = C::RESIDENT,
    .most_chunks = C::kMostChunks,
};

template <class C>
using Functions = ScheduledFunctions<kLine<C>, eligible, predict_us, schedule, &batched_mma::launch<C, DType::kF16>,
                                     &batched_mma::launch<C, DType::kBF16>>;

template <class C>
struct InPlaceFunctions
    : ScheduledFunctions<kInPlaceLine<C>, [](const Problem&, const InPlaceLine&, Reason*) { return true; },
                         predict_in_place_us, in_place_schedule, &batched_mma::launch<C, DType::kF16>,
                         &batched_mma::launch<C, DType::kBF16>> {
  static bool eligible(const Problem& p, const DeviceFacts& facts, Reason* why) {
    return in_place_eligible(p, facts, kInPlaceLine<C>, why);
  }
};

template <class C>
constexpr Name kName = name_of("batched_mma_", C::BM, "x", C::BN, "x", C::BK, "_w", C::WM, "x", C::WN, "_s", C::STAGES);
template <class C>
constexpr Name kInPlaceName = name_of("batched_mma_in_place_w", C::WARPS, "_", 16 * C::MI, "x32");

template <class C>
constexpr auto variants_of(const batched_mma::Kernel<C>&) {
  Variant v{};
  if constexpr (C::kIsInPlace) {
    v = variant_of<InPlaceFunctions<C>>(kInPlaceName<C>, Family::kBatchedMma, kHalfTypes, kInPlaceLine<C>);
  } else {
    v = variant_of<Functions<C>>(kName<C>, Family::kBatchedMma, kHalfTypes, kLine<C>);
  }
  v.sums = Sums::kInOrder;
  return std::array{v};
}

constexpr auto kVariants = variants_of_list(batched_mma::kKernels, [](auto kernel) { return variants_of(kernel); });

}  // namespace

const VariantList kBatchedMmaVariants = kVariants;

}  // namespace hgemm
