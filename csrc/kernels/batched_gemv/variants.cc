// The variants of batched_gemv: which problems each one can run, its schedule, and its predicted time.
#include <algorithm>
#include <array>
#include <cstdint>

#include "core/chip.h"
#include "core/cost.h"
#include "core/problem.h"
#include "core/variant_list.h"
#include "kernels/batched_gemv/config.h"
#include "kernels/batched_gemv/list.h"
#include "kernels/variants.h"

namespace hgemm {
namespace {

using batched_gemv::Schedule;

/// A kernel of list.h as plain values.
struct Line {
  Tile tile;  // bm: loads of a thread in flight; stages: blocks per SM
  int smem_bytes;
};

constexpr double kFixedUs = 2.5;       // launch, first loads, sums, drain
constexpr double kLatencyUs = 0.9;     // of a load while the memory is busy
constexpr double kStreamShare = 0.93;  // of the read bandwidth that is reached with enough loads in flight
constexpr double kSmRate = 60;         // GB/s that one SM reads, at most
constexpr double kUntimed = 100;       // the predictions are not fitted yet: no kernel is chosen
constexpr int kWarpsPerSm = 16;        // so many warps are wanted where K can be shared
constexpr int kLeastBytesAlong = 128;  // contiguous bytes that a warp reads, at least, if the matrix has them

int power_of_two(int64_t least, int most) {
  int out = 1;
  while (out < most && out < least) out *= 2;
  return out;
}

Schedule schedule(const Problem& p, const DeviceFacts& facts, const Line& line) {
  const ShortSide sides = short_side_of(p);
  const bool k_major = sides.w_major == Major::kK;
  const int size = dtype_bytes(p.dtype);
  const int64_t batches = p.batches(), wanted = int64_t{facts.sm_count} * kWarpsPerSm;
  Schedule s{};
  s.dependent = has_dependent_launch(facts.cc);
  const auto alignment = [&p](const Matrix& x, int64_t ld) {
    return alignment_of(x, p.dtype, ld, p.batch[0], p.batch[1]);
  };
  const int64_t along = k_major ? p.k : sides.rows;  // elements of W that are contiguous
  const int aligned = alignment(*sides.w, sides.ldw);
  s.bytes = 16;
  while (s.bytes > size && (aligned < s.bytes || along * size % s.bytes != 0)) s.bytes = s.bytes == 16 ? 4 : 2;
  const int elements = s.bytes / size;
  s.wide_x = sides.x_major == Major::kK && alignment(*sides.x, 0) == 16;

  const int loads = batched_gemv::loads_of(line.tile.bm, s.bytes);
  const int64_t chunks = std::max<int64_t>(ceil_div(along, elements), 1);
  // Cuts tiles for so many lanes, and shares K between warps while there are fewer than wanted.
  const auto cut = [&](int lanes, int rows) {
    s.lanes = lanes;
    s.rows = rows;
    s.width = k_major ? rows * (32 / lanes) : lanes * elements;
    s.tiles = static_cast<int>(ceil_div(sides.rows, s.width));
    s.all_tiles = s.tiles * batches;
    const int64_t rounds = k_major ? ceil_div(chunks, lanes * (loads / rows)) : ceil_div(p.k, loads * (32 / lanes));
    const int most = power_of_two(rounds, batched_gemv::kMostWarps);
    s.warps = 1;
    while (s.warps < most && s.all_tiles * s.warps < wanted) s.warps *= 2;
    return s.all_tiles * s.warps;
  };
  // The lanes beyond the end of a row have nothing to load. A warp should still read whole lines.
  const int most = power_of_two(chunks, 32);
  const int least = std::min(most, kLeastBytesAlong / s.bytes);
  const auto covered = [&](int lanes) { return ceil_div(chunks, lanes) * lanes; };
  int lanes = most;
  for (int l = most / 2; l >= least; l /= 2) {
    if (covered(l) * 8 < covered(lanes) * 7) lanes = l;
  }
  int64_t warps = cut(lanes, k_major ? loads : 1);
  if (k_major) {
    if (warps < wanted && s.bytes == 16) cut(lanes, batched_gemv::kFewRows);
  } else {
    for (; lanes > least && warps < wanted; lanes /= 2) warps = cut(lanes / 2, 1);
  }
  s.teams = batched_gemv::kMostWarps / s.warps;
  while (s.teams > 1 && ceil_div(s.all_tiles, s.teams) < 2 * facts.sm_count) s.teams /= 2;
  s.blocks = ceil_div(s.all_tiles, s.teams);
  return s;
}

bool eligible(const Problem& p, const Line&, Reason* why) {
  constexpr int64_t kMaxRows = int64_t{1} << 28, kMaxTiles = int64_t{1} << 30;
  const auto m = static_cast<long long>(p.m), n = static_cast<long long>(p.n), k = static_cast<long long>(p.k);
  if (std::min(m, n) != 1) return refuse(why, "M or N must be 1, got %lld and %lld", m, n);
  if (std::max({m, n, k}) > kMaxRows) {
    return refuse(why, "M, N and K must be at most 2^28, got %lld, %lld and %lld", m, n, k);
  }
  // A tile has at least two results, or is the only one of its matrix.
  if (p.batches() > kMaxTiles || p.batches() * std::max(p.m, p.n) > kMaxTiles) {
    return refuse(why, "there must be at most 2^30 results, got %lld x %lld", static_cast<long long>(p.batches()),
                  std::max(m, n));
  }
  return true;
}

/// Returns the time of the waves of blocks. Each takes its bytes at the memory's rate, or at the rate of the loads that
/// its blocks have in flight, or of the SMs that have blocks, where these are lower.
double predict_us(const Problem& p, const DeviceFacts& facts, const Line& line) {
  const Schedule s = schedule(p, facts, line);
  const bool k_major = short_side_of(p).w_major == Major::kK;
  const int64_t extent = k_major ? p.k : std::max(p.m, p.n);
  const int64_t chunks = std::max<int64_t>(extent * dtype_bytes(p.dtype) / s.bytes, 1);
  const double share = static_cast<double>(chunks) / static_cast<double>(ceil_div(chunks, s.lanes) * s.lanes);
  const double warp_bytes = share * 32 * s.bytes * batched_gemv::loads_of(line.tile.bm, s.bytes);
  const double block_bytes = dram_bytes(p) / static_cast<double>(std::max<int64_t>(s.blocks, 1));
  const int warps = s.warps * s.teams;
  const auto wave_us = [&](int64_t blocks) {
    const double sms = static_cast<double>(std::min<int64_t>(blocks, facts.sm_count));
    const double in_flight = static_cast<double>(blocks) * warps * warp_bytes;
    const double rate = std::min({dram_gbs(facts) * kStreamShare, in_flight / (kLatencyUs * 1e3), sms * kSmRate});
    return static_cast<double>(blocks) * block_bytes / (rate * 1e3);
  };
  const int64_t slots = int64_t{facts.sm_count} * (line.tile.stages * batched_gemv::kMostWarps / warps);
  const int64_t full = s.blocks / slots, rest = s.blocks % slots;
  return kUntimed * (kFixedUs + static_cast<double>(full) * wave_us(slots) + (rest > 0 ? wave_us(rest) : 0.0));
}

template <class C>
constexpr Line kLine = {
    .tile = {.bm = C::LOADS, .bn = 1, .bk = 1, .stages = C::BLOCKS, .threads = 32 * batched_gemv::kMostWarps},
    .smem_bytes = batched_gemv::kMostWarps * 32 * 16 * 4,
};

template <class C>
using Functions = ScheduledFunctions<kLine<C>, eligible, predict_us, schedule, &batched_gemv::launch<C, DType::kF16>,
                                     &batched_gemv::launch<C, DType::kBF16>, &batched_gemv::launch<C, DType::kF32>>;

template <class C>
constexpr Name kName = name_of("batched_gemv_l", C::LOADS);

template <class C>
constexpr auto variants_of(const batched_gemv::Kernel<C>&) {
  return std::array{variant_of<Functions<C>>(kName<C>, Family::kBatchedGemv, kHalfTypes | kFloat32, kLine<C>)};
}

constexpr auto kVariants = variants_of_list(batched_gemv::kKernels, [](auto kernel) { return variants_of(kernel); });

}  // namespace

const VariantList kBatchedGemvVariants = kVariants;

}  // namespace hgemm
