// The variants of sm90_split_skinny: which problems each one takes, its schedule, and its predicted time.
#include <algorithm>
#include <array>
#include <cstdint>
#include <tuple>

#include "core/cost.h"
#include "core/problem.h"
#include "core/short_side.h"
#include "core/variant_list.h"
#include "kernels/sm90_split_skinny/config.h"
#include "kernels/sm90_split_skinny/list.h"
#include "kernels/variants.h"
#include "tile/split_planes.h"

namespace hgemm {
namespace {

using sm90_split_skinny::Schedule;

// Fitted to 110 timings on an H200. The predictions are 5.3 % off (root mean square).
constexpr double kStartUs = 0.3;                      // what the parts of a wave do not cover
constexpr double kPassShare = 0.9;                    // share of the read bandwidth that making the planes of x reaches
constexpr double kStreamShare = 0.8;                  // share of the read bandwidth at which W is read
constexpr double kUnitUs = 1.8, kColumnUs = 0.098;    // first stages, last wait, stores; more for each row of x
constexpr double kBatchFactor = 1.2;                  // of batches: the median of 26, of 8 to 173 matrices
constexpr double kSlicesUs = 4.7, kSliceUs = 0.0333;  // to add up slices; more for each four slices and each row of x
constexpr int kMostSlices = 32, kLeastSteps = 2;      // slices; stages of a slice
constexpr int64_t kMostCols = 1024;                   // rows of x
constexpr size_t kMostSumsBytes = size_t{64} << 20;   // of partial sums

/// The parameters of a kernel of list.h, as run-time values.
struct Line {
  Tile tile;  // bm: rows of W, bn: rows of x
  int smem_bytes;
  double step_us;
};

struct Plan {
  Schedule schedule;
  double us;
};

/// The planes of x, the only ones.
tile::split::Planes planes_of_x(const Problem& p, const ShortSide& sides) {
  return tile::split::planes_of(p, *sides.x, sides.cols, tile::split::kPlanes);
}

/// The number of slices of K with the least predicted time, and that time.
Plan plan(const Problem& p, const DeviceFacts& facts, const Line& line) {
  const ShortSide sides = short_side_of(p);
  const Tile& t = line.tile;
  const int64_t rows = ceil_div(sides.rows, t.bm), cols = ceil_div(sides.cols, t.bn), tiles = rows * cols * p.batches();
  const int64_t steps = ceil_div(p.k, t.bk), sms = facts.sm_count;
  const double gbs = dram_gbs(facts) * kStreamShare * 1e3, stage_bytes = 4.0 * t.bm * t.bk;
  const tile::split::Planes planes = planes_of_x(p, sides);
  const double pass_us = static_cast<double>(planes.bytes) * tile::split::pass_share(tile::split::kPlanes) /
                         (dram_gbs(facts) * kPassShare * 1e3);
  Plan best{{}, 0};
  for (int64_t wanted = 1; wanted <= kMostSlices && (wanted == 1 || wanted * kLeastSteps <= steps); ++wanted) {
    const int64_t in_slice = ceil_div(steps, wanted), slices = ceil_div(steps, in_slice);
    const Schedule schedule{static_cast<int>(rows), static_cast<int>(cols), static_cast<int>(slices),
                            static_cast<int>(in_slice)};
    if (slices > 1 && schedule.sums_bytes(p.batches(), t) > kMostSumsBytes) break;
    if (slices > 1 && tiles * slices > 2 * sms) break;
    const int64_t units = tiles * slices, whole = units / sms, rest = units % sms;
    const auto wave_us = [&](int64_t blocks) {  // tiles of the same rows of W read them once
      const double step_us =
          std::max(line.step_us, static_cast<double>(blocks) / static_cast<double>(cols) * stage_bytes / gbs);
      return static_cast<double>(in_slice) * step_us + kUnitUs + kColumnUs * t.bn;
    };
    double us = kStartUs + pass_us + static_cast<double>(whole) * wave_us(sms) + (rest > 0 ? wave_us(rest) : 0.0);
    if (slices > 1) us += kSlicesUs + kSliceUs * static_cast<double>(ceil_div(slices, 4) * t.bn);
    if (wanted == 1 || us < best.us) best = {schedule, us};
  }
  return best;
}

size_t bytes_of(const Problem& p, const Schedule& s, const Line& line) {
  return planes_of_x(p, short_side_of(p)).bytes + s.sums_bytes(p.batches(), line.tile) +
         sizeof(unsigned) * static_cast<size_t>(s.counters(p.batches()));
}

bool eligible(const Problem& p, const DeviceFacts& facts, const Line& line, Reason* why) {
  if (!is_built_for_sm90a(why) || !is_countable(p, line.tile, why)) return false;
  if (p.b_is_a_transposed) return refuse(why, "%s", "x @ x.T would not be symmetric to the bit");
  const ShortSide sides = short_side_of(p);
  if (sides.cols > kMostCols) {
    return refuse(why, "M or N must be at most %lld, got %lld and %lld", static_cast<long long>(kMostCols),
                  static_cast<long long>(p.m), static_cast<long long>(p.n));
  }
  const int alignment = sides.swapped ? alignment_a(p) : alignment_b(p);
  if (alignment < 16) return refuse(why, "rows of the longer operand must be 16-byte aligned, got %d", alignment);
  const bool k_major = sides.w_major == Major::kK;
  if ((k_major ? sides.rows : p.k) > 1 && sides.ldw < (k_major ? p.k : sides.rows)) {
    return refuse(why, "%s", "rows of the longer operand must not overlap");
  }
  const size_t bytes = bytes_of(p, plan(p, facts, line).schedule, line);
  return bytes <= static_cast<size_t>(p.most_workspace) ||
         refuse(why, "needs %lld bytes of workspace, the limit is %lld", static_cast<long long>(bytes),
                static_cast<long long>(p.most_workspace));
}

template <class C>
constexpr Line kLine = {
    .tile = {.bm = C::ROWS, .bn = C::COLS, .bk = C::BK, .stages = C::STAGES, .threads = C::kThreads},
    .smem_bytes = C::kSmemBytes,
    .step_us = std::get<sm90_split_skinny::Kernel<C>>(sm90_split_skinny::kKernels).step_us,
};

template <class C>
struct Functions {
  static bool eligible(const Problem& p, const DeviceFacts& facts, Reason* why) {
    return hgemm::eligible(p, facts, kLine<C>, why);
  }
  static size_t workspace(const Problem& p, const DeviceFacts& facts) {
    return bytes_of(p, plan(p, facts, kLine<C>).schedule, kLine<C>);
  }
  static double predict_us(const Problem& p, const DeviceFacts& facts) {
    return (p.batches() > 1 ? kBatchFactor : 1.0) * plan(p, facts, kLine<C>).us;
  }
  static Status launch(const Problem& p, const DeviceFacts& facts, void* workspace, Stream stream) {
    return call<&sm90_split_skinny::launch<C>>(p, facts, plan(p, facts, kLine<C>).schedule, workspace, stream);
  }
};

template <class C>
constexpr Name kName = name_of("sm90_split_skinny_", C::ROWS, "x", C::COLS);

template <class C>
constexpr auto variants_of(const sm90_split_skinny::Kernel<C>&) {
  Variant v = variant_of<Functions<C>>(kName<C>, Family::kSm90SplitSkinny, kFloat32, kLine<C>);
  v.arithmetic = Arithmetic::kSplitF32;
  v.min_cc = kHopper;
  v.max_cc = kHopper;
  v.cut.pads = true;
  return std::array{v};
}

constexpr auto kVariants =
    variants_of_list(sm90_split_skinny::kKernels, [](auto kernel) { return variants_of(kernel); });

}  // namespace

const VariantList kSm90SplitSkinnyVariants = kVariants;

}  // namespace hgemm
