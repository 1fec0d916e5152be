#include "dispatch/grouped.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <iterator>
#include <limits>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/chip.h"
#include "core/device.h"
#include "core/variant_list.h"
#include "dispatch/choose.h"
#include "dispatch/context.h"
#include "dispatch/decision.h"
#include "dispatch/devices.h"
#include "dispatch/invariance.h"
#include "dispatch/margin.h"
#include "dispatch/models/grouped_table.h"
#include "dispatch/stats.h"
#include "kernels/variants.h"

namespace hgemm {
namespace {

static_assert(std::is_trivially_copyable_v<GroupedJob>);

constexpr int64_t kMost = std::numeric_limits<int32_t>::max() / 2;

/// At least as many output tiles as any kernel has.
int64_t most_tiles(const GroupedProduct& grouped) {
  const Problem& p = grouped.product;
  const auto tiles = [&](Divided divided, int64_t extent, int64_t size) {
    return grouped.divided == divided ? extent / size + std::min(extent, p.batch[1]) : ceil_div(extent, size);
  };
  const int64_t of_one = tiles(Divided::kRows, p.m, 16) * tiles(Divided::kColumns, p.n, 64);
  return grouped.divided == Divided::kInner ? of_one * p.batch[1] : of_one;
}

Outcome invalid(const std::string& message, GroupedPlan* plan) {
  plan->message = "hgemm: grouped_mm: " + message;
  return plan->outcome = Outcome::kInvalid;
}

std::string text_of(const TensorView& x) {
  return shape_text(x.ndim, x.sizes);
}

/// The error in the sizes of the operands, or "".
std::string size_error(const GroupedRequest& request) {
  const TensorView &a = request.a, &b = request.b;
  if (a.sizes[a.ndim - 1] != b.sizes[b.ndim - 2]) {
    return "a " + text_of(a) + " and b " + text_of(b) +
           ": the last dimension of a and the last but one of b must match";
  }
  if (request.offs == nullptr) return "";
  const TensorView& offs = *request.offs;
  if (request.offs_is_elsewhere) return "offs must be on the device of a and b";
  if (offs.sizes[0] > 1 && offs.strides[0] != 1) return "offs must be contiguous";
  const TensorView* of_groups = a.ndim == 3 ? &a : b.ndim == 3 ? &b : nullptr;
  if (of_groups != nullptr && offs.sizes[0] != of_groups->sizes[0]) {
    return "offs has " + std::to_string(offs.sizes[0]) + " elements, but " + (of_groups == &a ? "a " : "b ") +
           text_of(*of_groups) + " has " + std::to_string(of_groups->sizes[0]) + " groups";
  }
  return "";
}

/// The last two dimensions of an operand as a matrix, or as its transpose, and the stride of the first of three.
Matrix matrix_of(const TensorView& x, bool transposed) {
  const int64_t* const strides = x.strides + x.ndim - 2;
  return {const_cast<void*>(x.data), strides[transposed], strides[!transposed], {0, x.ndim == 3 ? x.strides[0] : 0}};
}

/// The product as kernels see it, or with the columns of b divided and `is_transposed` that of the transposes. Its D
/// has no memory yet.
GroupedProduct product_of(const GroupedRequest& request, bool is_transposed) {
  const TensorView& a = is_transposed ? request.b : request.a;
  const TensorView& b = is_transposed ? request.a : request.b;
  GroupedProduct grouped;
  Problem& p = grouped.product;
  p.m = a.sizes[a.ndim - (is_transposed ? 1 : 2)];
  p.n = b.sizes[b.ndim - (is_transposed ? 2 : 1)];
  p.k = a.sizes[a.ndim - (is_transposed ? 2 : 1)];
  p.batch[1] = request.offs->sizes[0];
  p.a = matrix_of(a, is_transposed);
  p.b = matrix_of(b, is_transposed);
  p.d = {nullptr, grouped_pitch(p.n, a.dtype), 1, {0, 0}};
  p.dtype = p.out_dtype = a.dtype;
  grouped.ends = static_cast<const int32_t*>(request.offs->data);
  if (b.ndim == 2) grouped.divided = a.ndim == 2 ? Divided::kInner : Divided::kColumns;
  if (grouped.divided == Divided::kInner) p.d.batch_stride[1] = p.m * p.d.row_stride;
  return grouped;
}

bool is_row_major(const Matrix& x, int64_t columns) {
  return x.col_stride == 1 && x.row_stride >= columns;
}
bool is_column_major(const Matrix& x, int64_t rows) {
  return x.row_stride == 1 && x.col_stride >= rows;
}

/// What kernels that read operands by TMA need of a call: the product of the transposes, or copies of operands.
struct Arrangement {
  bool is_transposed = false, copies_a = false, copies_b = false;

  bool is_needed() const { return is_transposed || copies_a || copies_b; }
};

/// Which operands of a product have the other order than kernels take, and torch would take them.
Arrangement arrangement_of(const GroupedProduct& grouped) {
  const Problem& p = grouped.product;
  Arrangement needed;
  if (grouped.divided == Divided::kRows) {
    needed.copies_a = !is_row_major(p.a, p.k) && is_column_major(p.a, p.m) && alignment_a(p) == 16;
    return needed;
  }
  needed.copies_a = !is_column_major(p.a, p.m) && is_row_major(p.a, p.k) && alignment_a(p) == 16;
  needed.copies_b = !is_row_major(p.b, p.n) && is_column_major(p.b, p.k) && alignment_b(p) == 16;
  return needed;
}

/// Replaces operands by copies in the order that kernels take, which the door is to make.
void replace_by_copies(const Arrangement& needed, GroupedProduct* grouped) {
  Problem& p = grouped->product;
  if (needed.copies_a && grouped->divided == Divided::kRows) p.a = {nullptr, grouped_pitch(p.k, p.dtype), 1, {0, 0}};
  if (needed.copies_a && grouped->divided != Divided::kRows) p.a = {nullptr, 1, grouped_pitch(p.m, p.dtype), {0, 0}};
  if (needed.copies_b) p.b = {nullptr, grouped_pitch(p.n, p.dtype), 1, {0, 0}};
}

constexpr const char* kDividedNames[] = {"rows", "k", "columns"};  // by the value of Divided
constexpr const char* kUnaligned = "needs rows that consist of whole aligned chunks of 16 bytes";
constexpr const char* kDisordered = "does not take operands in this order";

/// Whether TMA can read the operands where they lie, and a kernel for Hopper's sizes fit 32 bits.
bool is_readable_by_tma(const GroupedProduct& grouped, Reason* why) {
  const Problem& p = grouped.product;
  const bool by_rows = grouped.divided == Divided::kRows;
  const int64_t row_tiles = by_rows ? p.m / 64 + std::min(p.m, p.batch[1]) : ceil_div(p.m, 64) * p.batch[1];
  const bool are_ordered = by_rows ? is_row_major(p.a, p.k) && (is_row_major(p.b, p.n) || is_column_major(p.b, p.k))
                                   : is_column_major(p.a, p.m) && is_row_major(p.b, p.n);
  if (p.n > kMost / 1024 || row_tiles * ceil_div(p.n, 128) > kMost) return refuse(why, "%s", "a size is too large");
  if (!are_ordered) return refuse(why, "%s", kDisordered);
  return (alignment_a(p) == 16 && alignment_b(p) == 16) || refuse(why, "%s", kUnaligned);
}

/// Whether a kernel that does not use TMA can read the operands where they lie.
bool is_readable(const GroupedProduct& grouped, GroupedKernel::Takes takes, Reason* why) {
  const Problem& p = grouped.product;
  const bool a_rows = is_row_major(p.a, p.k), b_rows = is_row_major(p.b, p.n);
  if ((!a_rows && !is_column_major(p.a, p.m)) || (!b_rows && !is_column_major(p.b, p.k))) {
    return refuse(why, "%s", "an operand has no contiguous dimension");
  }
  const bool ka = p.a_major() == Major::kK, kb = p.b_major() == Major::kK;
  if (p.is_half() && !ka && kb) return refuse(why, "%s", kDisordered);
  if (takes == GroupedKernel::Takes::kAny) return true;
  const Divided a_index = ka ? Divided::kInner : Divided::kRows, b_index = kb ? Divided::kInner : Divided::kColumns;
  if (a_index == grouped.divided || b_index == grouped.divided) {
    return refuse(why, "%s", "the divided dimension is the contiguous one of an operand");
  }
  const bool are_whole = (ka ? p.k : p.m) % 8 == 0 && (kb ? p.k : p.n) % 8 == 0;
  return (are_whole && alignment_a(p) == 16 && alignment_b(p) == 16) || refuse(why, "%s", kUnaligned);
}

/// Whether a kernel takes the operands of a product where they lie.
bool takes(const GroupedKernel& kernel, const GroupedProduct& grouped, const DeviceFacts& facts, Reason* why) {
  const Problem& p = grouped.product;
  if ((kernel.dtypes >> static_cast<int>(p.dtype) & 1u) == 0) {
    return refuse(why, "does not take %s", dtype_name(p.dtype));
  }
  if (facts.cc < kernel.min_cc || facts.cc > kernel.max_cc) return refuse(why, "needs sm_%d", kernel.min_cc);
  if (p.empty()) return refuse(why, "%s", "a size is 0, so there is nothing to multiply");
  if ((kernel.forms & form_bit(grouped.divided)) == 0) {
    return refuse(why, "does not take groups of %s", kDividedNames[static_cast<int>(grouped.divided)]);
  }
  if (p.batch[1] > kernel.max_groups) return refuse(why, "takes at most %d groups", kernel.max_groups);
  if (p.m > kMost || p.n > kMost || p.k > kMost || p.batch[1] > kMost || most_tiles(grouped) > kMost) {
    return refuse(why, "%s", "a size is too large");
  }
  if (kernel.takes == GroupedKernel::Takes::kTma) return is_built_for_sm90a(why) && is_readable_by_tma(grouped, why);
  return is_readable(grouped, kernel.takes, why);
}

// The kernels for Hopper, in the order of their list.
enum OwnKernel {
  k64x64,
  k128x128,
  k1x2,
  k192,
  k512,
  k256x256,
  kGradient256x192,
  kGradient192x256,
  kGradient256x256,
  k128x64,
  k192x128
};

// The rows of a group on average up to which these kernels are chosen. With long K the next one is chosen sooner:
// evenly spread, its tiles of 256 rows are as full as torch's. These limits and those of other functions here were
// fitted to ten models on an H200 and scored on ten others (kernels/sm90_wgmma/NOTES.md).
constexpr double kMostRows64x64 = 16, kMostRows128x128 = 48, kMostRows1x2 = 256, kMostRows1x2OfLongK = 128;
constexpr int64_t kLongK = 3500;

/// The rows of a group, or its k, on average over as many groups as may have any.
double mean_rows(const GroupedProduct& grouped) {
  const Problem& p = grouped.product;
  const int64_t all = grouped.divided == Divided::kRows ? p.m : p.k;
  return static_cast<double>(all) / static_cast<double>(std::min(all, p.batch[1]));
}

/// Whether torch's kernel is faster on a chip with the memory of an H100. There, both are as fast as the memory more
/// often than on an H200. The rule separates the cases that were timed on an H100: 20 models, evenly and by Zipf's law.
bool is_torch_faster_with_slow_memory(const GroupedProduct& grouped) {
  const Problem& p = grouped.product;
  const double rows = mean_rows(grouped);
  const int64_t groups = p.batch[1];
  if (grouped.divided == Divided::kInner) {
    const bool is_small = p.m * p.n <= int64_t{2048} * 2048 && groups <= 64;
    return !is_small && rows < (groups <= 64 ? 192 : 384);
  }
  if (rows <= 64) return false;
  if (rows <= 192) return p.k > 10000 || (rows > 128 && (p.k > 1536 || groups > 256));
  if (rows < 384) return p.k > 7000;
  const bool is_wide = p.n >= 12000 && !(groups <= 8 && (rows >= 2048 || p.k <= 4096));
  return is_wide || (rows < 2048 && p.k > 6300) || (groups >= 128 && p.k >= 2048);
}

/// Whether torch's kernel is faster. Torch has one for bfloat16 alone.
bool is_torch_faster(const GroupedProduct& grouped, const DeviceFacts& facts) {
  const bool has_slow_memory = dram_share(facts) < 0.85;
  return grouped.product.dtype == DType::kBF16 && has_slow_memory && is_torch_faster_with_slow_memory(grouped);
}

/// The share of a kernel's work tiles that lies inside of D's columns.
double share_of_columns(int64_t n, int kernel) {
  const int64_t columns = grouped_kernel(kernel).columns;
  return static_cast<double>(n) / static_cast<double>(ceil_div(n, columns) * columns);
}

/// Counts a call as the report shows it.
void count(GroupedJob* job, const GroupedDecision& decided, HgemmLeft left) {
  Problem counted = job->grouped.product;
  counted.gated = false;
  counted.bias = nullptr;
  counted.act = Activation::kNone;
  counted.d.row_stride = grouped_pitch(counted.n, counted.dtype);
  counted.batch[1] = 1;  // the divided dimension is that of all groups together
  if (job->is_transposed) std::swap(counted.m, counted.n);
  Decision decision;
  decision.variant = decided.kernel == kTorch ? kTorch : kFirstGroupedKernel + decided.kernel;
  decision.source = decided.source;
  decision.remark = decided.remark;
  job->counted = {};
  count_call({.problem = counted,
              .ordinal = job->ordinal,
              .cc = 0,
              .decision = decision,
              .left = left,
              .site = job->site,
              .is_grouped = true},
             &job->counted);
}

/// Whether torch must not compute the product. A sum over the rows of a batch, as in a weight's gradient, is not one
/// that batch-invariance speaks of.
bool must_be_ours(const GroupedProduct& grouped) {
  const Problem& p = grouped.product;
  const bool sums_rows = grouped.divided == Divided::kInner;
  return must_be_ours(p) && (!sums_rows || p.numerics == NumericsMode::kBatchInvariantOrRaise);
}

/// The kernel for Hopper that computes groups of k: the one whose work tiles cover less that is not D's. Both cover
/// 256 x 192, the one by two tiles of 128 rows that share columns, the other by two of 128 columns that share rows. If
/// they cover as much, the first is faster with many k.
int gradient_kernel(const GroupedProduct& grouped) {
  const Problem& p = grouped.product;
  const auto covered = [&p](int64_t rows, int64_t columns) {
    return static_cast<double>(ceil_div(p.m, rows) * rows * ceil_div(p.n, columns) * columns);
  };
  const double most = mean_rows(grouped) < 256 ? 0.98 : 1.05;
  return covered(256, 192) <= most * covered(192, 256) ? kGradient256x192 : kGradient192x256;
}

/// The kernel for Hopper that computes a product which it takes.
int own_kernel(const GroupedProduct& grouped) {
  if (grouped.divided == Divided::kInner) return gradient_kernel(grouped);
  const Problem& p = grouped.product;
  const double rows = mean_rows(grouped);
  if (rows <= kMostRows64x64) return k64x64;
  if (p.gated) return k1x2;
  if (rows <= kMostRows128x128) return k128x128;
  const bool is_long = p.k > kLongK;
  if (rows <= (is_long ? kMostRows1x2OfLongK : kMostRows1x2)) return k1x2;
  const int many = is_long ? k256x256 : k512;
  return share_of_columns(p.n, k192) > 1.04 * share_of_columns(p.n, many) ? k192 : many;
}

// The rows that a group has on average up to which each of these kernels is chosen, and the last one of its list beyond
// them. Timed on an H200 (kernels/sm80_mma/NOTES.md, kernels/simt_grouped/NOTES.md).
constexpr double kMostRowsOfMma[] = {48};
constexpr double kMostRowsOfSimt[] = {16, 48};

/// The rows of a group's product on average: those of a group, or of every product where the rows are not divided.
double rows_of_one(const GroupedProduct& grouped) {
  return grouped.divided == Divided::kRows ? mean_rows(grouped) : static_cast<double>(grouped.product.m);
}

/// The kernel that takes the operands of a product where they lie; kTorch where there is none.
int kernel_in_place(const GroupedProduct& grouped, const DeviceFacts& facts) {
  const double rows = rows_of_one(grouped);
  int kernel = kSm90GroupedKernels.count;
  if (grouped.product.is_half()) {
    for (const double most_rows : kMostRowsOfMma) kernel += rows > most_rows;
    // The kernel for few rows takes what the other one does not.
    if (!takes(grouped_kernel(kernel), grouped, facts, nullptr)) kernel = kSm90GroupedKernels.count;
  } else {
    kernel += kSm80GroupedKernels.count;
    for (const double most_rows : kMostRowsOfSimt) kernel += rows > most_rows;
  }
  return takes(grouped_kernel(kernel), grouped, facts, nullptr) ? kernel : kTorch;
}

/// Whether torch is faster than the kernels that read operands where they lie. Except for bfloat16 on Hopper and newer,
/// torch copies the ends to the host and computes a group after the other. Where one group's product takes less time
/// than its launch, or leaves most of the device idle, the loop is slower. The limits separate the cases that were
/// timed on an H200. Other chips need kUnmeasuredMargin.
bool is_torchs_loop_faster(const GroupedProduct& grouped, const DeviceFacts& facts) {
  const Problem& p = grouped.product;
  if (p.dtype == DType::kBF16 && facts.cc >= kHopper) return true;
  const Chip& chip = chip_of(facts.cc);
  const double groups = static_cast<double>(std::min(grouped.divided == Divided::kRows ? p.m : p.n, p.batch[1]));
  double m = rows_of_one(grouped), n = static_cast<double>(p.n), k = static_cast<double>(p.k);
  if (grouped.divided == Divided::kColumns) n /= groups;
  if (grouped.divided == Divided::kInner) k = mean_rows(grouped);
  const double clock = chip.clock_ghz * facts.sm_count * 1e3;
  const double matrix_us = (grouped.divided == Divided::kInner  ? m * n
                            : grouped.divided == Divided::kRows ? n * k
                                                                : m * k) *
                           dtype_bytes(p.dtype) / (chip.dram_gbs * 1e3);
  const double math_us = 2 * m * n * k / (clock * (p.is_half() ? chip.peak_flops : chip.simt_flops));
  const double margin = is_measured(facts.cc) ? 1 : kUnmeasuredMargin;
  const double most_matrix_us = p.is_half() ? 12 : 6, most_math_us = p.is_half() ? 10 : 40;
  return matrix_us * margin > most_matrix_us || math_us * margin > most_math_us;
}

GroupedDecision ours(int kernel) {
  GroupedDecision decision;
  decision.kernel = kernel;
  decision.source = Source::kModel;
  return decision;
}

GroupedDecision torchs(Remark remark) {
  return {.kernel = kTorch,
          .source = remark == Remark::kTorchFaster ? Source::kModel : Source::kFallback,
          .remark = remark};
}

/// The time of a kernel's work tiles in us where one group has all rows, or all k. The times of 64 k, in the order of
/// the list, were measured on an H200, where stages come from L2.
double one_group_us(const GroupedProduct& grouped, int kernel, int sm_count) {
  constexpr double kUs[] = {0.28, 0.46, 0.35, 0.50, 0.66, 0.66, 0.52, 0.52, 0.66, 0.27};
  const Problem& p = grouped.product;
  const GroupedKernel& tile = grouped_kernel(kernel);
  const int64_t tiles = ceil_div(p.m, tile.rows) * ceil_div(p.n, tile.columns);
  return static_cast<double>(ceil_div(tiles, std::max(1, sm_count / tile.blocks)) * ceil_div(p.k, 64)) * kUs[kernel];
}

/// The kernels for many rows a group, with the time of 64 k of a work tile in us, and the time that a tile takes
/// besides. Together with the time of reading the weights, they predict the times of even groups and of groups by
/// Zipf's law in results/h200/grouped.json.xz with an error of 4 % (root mean square). Then all of them ran the same 41
/// of these cases, among them 192x128 for the first time, and each time was corrected by its median there, by at most
/// 3 %.
constexpr struct {
  int kernel;
  double us;
} kManyRows[] = {{k1x2, 0.382}, {k192, 0.543}, {k512, 0.750}, {k256x256, 0.728}, {k192x128, 0.553}};
constexpr double kTileUs = 0.16;
// With two row tiles a group, kernels take longer than that: 128x128_1x2 took 1.04 to 1.32 times as long for even
// groups of 256 rows (five cases), and 128x192_2x1, one tile of which has all rows, 1.00 to 1.13 times in four of
// these.
constexpr double kTwoRowTiles = 1.06, kMostTwoRows = 320;

/// The second of two launches that compare their work tiles must be faster by so much.
constexpr double kLeastSecondGain = 1.03;

/// The work tiles of a kernel for many rows. `factor`: of their time.
WorkTiles work_tiles(const GroupedProduct& grouped, int kernel, int sm_count, double factor) {
  const Problem& p = grouped.product;
  const GroupedKernel& tile = grouped_kernel(kernel);
  const auto* const timed =
      std::find_if(std::begin(kManyRows), std::end(kManyRows), [&](const auto& x) { return x.kernel == kernel; });
  const double rows = mean_rows(grouped);
  const bool has_two = tile.rows < rows && rows <= kMostTwoRows;
  const double us = (static_cast<double>(ceil_div(p.k, 64)) * timed->us + kTileUs) * (has_two ? kTwoRowTiles : 1.0);
  return {.rows = tile.rows,
          .columns = static_cast<uint32_t>(ceil_div(p.n, tile.columns)),
          .at_once = static_cast<uint32_t>(std::max(1, sm_count / tile.blocks)),
          .ns = static_cast<uint32_t>(std::min(us * 1e3 * factor, 4e9))};
}

/// The kernel for a second launch behind `own`, which is one for many rows a group; kTorch where none is worth it. The
/// host does not know the groups, so it compares the kernels for even groups, and for ragged ones, whose last tiles are
/// half full on average. The kernel that gains most for both together is worth the launch if it saves 10 us for one.
int second_for_many_rows(const GroupedProduct& grouped, int own, const DeviceFacts& facts) {
  constexpr double kLeastRows = 128;  // with fewer, kernels take as long as reading the weights does
  constexpr double kLeastGain = 1.03, kLeastNs = 10e3;
  const Problem& p = grouped.product;
  if (p.gated || mean_rows(grouped) <= kLeastRows) return kTorch;
  const int64_t groups = std::min(p.m, p.batch[1]), rows = p.m / groups, longer = p.m % groups;
  struct Times {
    double even, ragged;
  };
  const auto times_ns = [&](int kernel, double factor) -> Times {
    const WorkTiles tiles = work_tiles(grouped, kernel, facts.sm_count, factor);
    const int64_t even = ceil_div(rows, tiles.rows) * (groups - longer) + ceil_div(rows + 1, tiles.rows) * longer;
    const int64_t ragged = p.m / tiles.rows + groups / 2;
    return {static_cast<double>(tiles.product_ns(static_cast<uint32_t>(even))),
            static_cast<double>(tiles.product_ns(static_cast<uint32_t>(ragged)))};
  };
  const Times mine = times_ns(own, 1);
  int second = kTorch;
  double most_gain = kLeastGain;
  for (const auto& line : kManyRows) {
    if (line.kernel == own) continue;
    const Times its = times_ns(line.kernel, kLeastSecondGain);
    const double gain = std::max(mine.even / its.even, 1.0) * std::max(mine.ragged / its.ragged, 1.0);
    if (gain < most_gain || std::max(mine.even - its.even, mine.ragged - its.ragged) < kLeastNs) continue;
    most_gain = gain;
    second = line.kernel;
  }
  return second;
}

/// The decision for `own`, a kernel for Hopper. If it is one for few rows a group, or for gradients, and another one is
/// much faster where one group has all rows, or all k, both are launched. So are two kernels for many rows, if which of
/// them is faster depends on the groups.
GroupedDecision own_decision(const GroupedProduct& grouped, int own, const DeviceFacts& facts) {
  GroupedDecision decision = ours(own);
  const Problem& p = grouped.product;
  if (p.batch[1] == 1) return decision;
  constexpr double kLaunchUs = 3, kGradientLaunchUs = 5;  // of the launch that has nothing to do
  const auto us = [&](int kernel) { return one_group_us(grouped, kernel, facts.sm_count); };
  if (grouped.divided == Divided::kInner) {
    if (us(own) >= us(kGradient256x256) + kGradientLaunchUs) decision.second = kGradient256x256;
    return decision;
  }
  if (own != k64x64 && own != k128x128) {
    decision.second = second_for_many_rows(grouped, own, facts);
    return decision;
  }
  const int few_rows = own == k64x64 ? 64 : 128;  // up to so many rows a group, it reads each weight once
  if (p.m <= few_rows) return decision;
  int other = k1x2;
  for (const int kernel : {k192, k128x64}) {
    if (!p.gated && us(kernel) < us(other)) other = kernel;
  }
  if (us(own) < 1.15 * us(other) + kLaunchUs) return decision;
  decision.second = other;
  decision.few_rows = few_rows;
  return decision;
}

/// A call in the two ways that kernels see it.
struct Ways {
  GroupedProduct called;                   // as it is
  std::optional<GroupedProduct> arranged;  // for TMA; empty where TMA kernels compute `called` as it is
  Arrangement arrangement;
  bool torch_takes = true;  // the operands' rows start at multiples of 16 bytes, without which torch refuses them

  const GroupedProduct& for_tma() const { return arranged ? *arranged : called; }
};

/// Whether the kernels for Hopper may apply the gate of a request. They take eight columns of gate and of up in turn,
/// of all groups in one tensor. Calls that need copies do not: where there is no memory for the copies, another kernel
/// computes the product, and its result is rounded before the gate.
bool may_gate(const GroupedRequest& request, const Ways& ways) {
  const Problem& p = ways.called.product;
  return request.gated && !ways.arrangement.is_needed() && ways.called.divided == Divided::kRows &&
         request.bias == nullptr && p.n % 16 == 0 && p.b_major() == Major::kK && p.b.batch_stride[1] == p.n * p.ldb();
}

Ways ways_of(const GroupedRequest& request, NumericsMode numerics, Float32Mode float32) {
  Ways ways;
  ways.called = product_of(request, false);
  Problem& called = ways.called.product;
  ways.torch_takes = alignment_a(called) == 16 && alignment_b(called) == 16;
  ask_for(numerics, float32, &called);
  const bool is_transposed = request.a.ndim == 3;
  if (is_transposed) {
    ways.arranged = product_of(request, true);
    ask_for(numerics, float32, &ways.arranged->product);
  }
  ways.arrangement = arrangement_of(ways.for_tma());
  ways.arrangement.is_transposed = is_transposed;
  const bool gates = may_gate(request, ways);
  const bool is_finished = gates || (!request.gated && (request.bias != nullptr || request.act != Activation::kNone));
  if (!ways.arrangement.is_needed() && !is_finished) return ways;
  if (!is_transposed) ways.arranged = ways.called;
  replace_by_copies(ways.arrangement, &*ways.arranged);
  if (!is_finished) return ways;
  Problem& arranged = ways.arranged->product;  // only kernels that take the arranged product apply what follows
  arranged.bias = request.bias;
  arranged.act = request.act;
  arranged.gated = gates;
  if (gates) arranged.d.row_stride = grouped_pitch(arranged.n / 2, arranged.dtype);
  return ways;
}

/// Whether kernels take the operands where they lie, and so does torch's. Other calls are not timed.
bool is_plain(const Ways& ways) {
  return !ways.arrangement.is_needed() && ways.torch_takes;
}

/// Whether the choice for a call may be the fastest of measured times, torch's among them.
bool may_be_measured(const Ways& ways) {
  const Problem& p = ways.called.product;
  const bool is_strict = p.dtype != DType::kF32 || p.float32 == Float32Mode::kStrict;
  return is_plain(ways) && is_strict && p.numerics == NumericsMode::kFast && !p.empty();
}

/// Whether a kernel can compute the call.
bool takes(const GroupedKernel& kernel, const Ways& ways, const DeviceFacts& facts, Reason* why) {
  return takes(kernel, kernel.takes == GroupedKernel::Takes::kTma ? ways.for_tma() : ways.called, facts, why);
}

/// Bytes that the doors allocate beside the result, for copies of operands and for the transpose of the result.
int64_t arrangement_bytes(const Ways& ways) {
  const Problem& p = ways.for_tma().product;
  const auto bytes = [&p](int64_t rows, int64_t columns) {
    return rows * grouped_pitch(columns, p.dtype) * dtype_bytes(p.dtype);
  };
  const Arrangement& needed = ways.arrangement;
  const bool by_rows = ways.for_tma().divided == Divided::kRows;
  return (needed.copies_a ? (by_rows ? bytes(p.m, p.k) : bytes(p.k, p.m)) : 0) +
         (needed.copies_b ? bytes(p.k, p.n) : 0) + (needed.is_transposed ? bytes(p.n, p.m) : 0);
}

/// The measured times that may decide on a call; null where there are none.
GroupedTimes times_of(const Ways& ways, const DeviceFacts& facts) {
  return may_be_measured(ways) ? grouped_times(grouped_key(ways.called, facts)) : nullptr;
}

/// The fastest of the measured times, in `decision`. False where torch was not measured.
bool find_fastest(const std::vector<Timing>& times, const Ways& ways, const DeviceFacts& facts,
                  GroupedDecision* decision) {
  constexpr double kLeastGain = 1.01;  // as in the table of other products
  double torch_us = 0, least = std::numeric_limits<double>::infinity();
  int fastest = kTorch;
  for (const Timing& t : times) {
    if (t.variant == kTorch) {
      torch_us = t.us;
    } else if (t.us < least && takes(grouped_kernel(t.variant), ways, facts, nullptr)) {
      least = t.us;
      fastest = t.variant;
    }
  }
  if (torch_us == 0) return false;
  const bool is_ours = fastest != kTorch && least * kLeastGain <= torch_us;
  *decision = {.kernel = is_ours ? fastest : kTorch, .source = Source::kTable, .remark = Remark::kNone};
  return true;
}

/// The kernel for a call that names none. `times`: from times_of().
GroupedDecision choose(const Ways& ways, const DeviceFacts& facts, const GroupedTimes& times, bool as_torch) {
  const Problem& p = ways.called.product;
  if (as_torch && !ways.torch_takes) return torchs(Remark::kTorchRefuses);
  if (p.dtype == DType::kF32 && p.float32 == Float32Mode::kTf32 && ways.torch_takes) return torchs(Remark::kMayUseTf32);
  if (GroupedDecision measured; times != nullptr && find_fastest(*times, ways, facts, &measured)) return measured;
  const bool may_be_torchs = p.numerics == NumericsMode::kFast && ways.torch_takes;
  const int own = own_kernel(ways.for_tma());
  if (takes(grouped_kernel(own), ways, facts, nullptr)) {
    const bool may_compare = may_be_torchs && !ways.arrangement.is_needed();
    if (may_compare && is_torch_faster(ways.called, facts)) return torchs(Remark::kTorchFaster);
    if (arrangement_bytes(ways) <= kMostWorkspace) return own_decision(ways.for_tma(), own, facts);
    // Torch's kernel might end the CUDA context. So if no kernel takes the operands where they lie, they are copied.
    const int in_place = kernel_in_place(ways.called, facts);
    return ours(in_place != kTorch ? in_place : own);
  }
  const int in_place = kernel_in_place(ways.called, facts);
  if (in_place == kTorch) return torchs(Remark::kNone);
  return may_be_torchs && is_torchs_loop_faster(ways.called, facts) ? torchs(Remark::kTorchFaster) : ours(in_place);
}

/// The decision on a call that names `variant`, or kAuto. `times`: from times_of().
GroupedDecision decide(const Ways& ways, const DeviceFacts& facts, const GroupedTimes& times, int variant,
                       bool as_torch) {
  if (variant == kAuto) return choose(ways, facts, times, as_torch);
  const bool can = variant >= 0 && takes(grouped_kernel(variant), ways, facts, nullptr);
  return {.kernel = can ? variant : kTorch, .source = Source::kForced, .remark = Remark::kNone};
}

std::atomic<GroupedTunerFn> the_tuner{nullptr};

/// Has a call timed whose sizes have no measured times yet, if the context asks for that, and returns its times.
GroupedTimes tune_where_asked(const GroupedRequest& request, const Ways& ways, const DeviceFacts& facts) {
  const GroupedTunerFn tuner = the_tuner.load(std::memory_order_relaxed);
  if (tuner == nullptr || context_settings().tunes == 0 || !may_be_measured(ways)) return nullptr;
  const GroupedKey key = grouped_key(ways.called, facts);
  HgemmGroupedTuning tuning{};
  std::copy(key.begin(), key.end(), tuning.key);
  tuning.ordinal = request.ordinal;
  const auto describe = [](const TensorView& from, HgemmTensor* to, const void** data) {
    to->ndim = from.ndim;
    to->dtype = static_cast<int32_t>(from.dtype);
    std::copy_n(from.sizes, from.ndim, to->sizes);
    std::copy_n(from.strides, from.ndim, to->strides);
    *data = from.data;
  };
  describe(request.a, &tuning.a, &tuning.a_data);
  describe(request.b, &tuning.b, &tuning.b_data);
  tuning.ends = request.offs->data;
  tuner(&tuning);
  return grouped_times(key);
}

/// Writes to the plan what the kernel of its job needs.
void use_kernel(int kernel, const Ways& ways, GroupedPlan* plan) {
  const bool arranges = grouped_kernel(kernel).takes == GroupedKernel::Takes::kTma;
  GroupedJob& job = plan->job;
  job.kernel = kernel;
  job.grouped = arranges ? ways.for_tma() : ways.called;
  Problem& p = job.grouped.product;
  if (p.gated && !grouped_kernel(kernel).gates) {
    p.gated = false;
    p.act = Activation::kNone;
    p.d.row_stride = grouped_pitch(p.n, p.dtype);
  }
  plan->finishes = p.gated || p.bias != nullptr || p.act != Activation::kNone;
  job.is_transposed = arranges && ways.arrangement.is_transposed;
  plan->copies_a = arranges && ways.arrangement.copies_a;
  plan->copies_b = arranges && ways.arrangement.copies_b;
  if (arranges && ways.arrangement.is_needed()) {
    job.in_place = kernel_in_place(ways.called, job.facts);
    job.a = ways.called.product.a;
    job.b = ways.called.product.b;
  }
}

/// Writes the sizes of the result to the plan.
void set_result(GroupedPlan* plan) {
  const GroupedProduct& grouped = plan->job.grouped;
  plan->groups = grouped.divided == Divided::kInner ? grouped.product.batch[1] : 0;
  plan->rows = grouped.product.m;
  plan->columns = grouped.product.gated ? grouped.product.n / 2 : grouped.product.n;
  plan->pitch = grouped.product.d.row_stride;
}

}  // namespace

void set_grouped_tuner(GroupedTunerFn tuner) {
  the_tuner.store(tuner);
}

GroupedDecision choose_grouped(const GroupedRequest& request, NumericsMode numerics, Float32Mode float32,
                               const DeviceFacts& facts) {
  const Ways ways = ways_of(request, numerics, float32);
  return decide(ways, facts, times_of(ways, facts), request.variant, request.as_torch);
}

std::string reason_of(const GroupedDecision& decision) {
  if (decision.source == Source::kTable) return "table: the fastest of the times measured at these sizes";
  if (decision.kernel != kTorch) {
    if (decision.source == Source::kForced) return "forced: the call names the kernel";
    const std::string reason = "model: by the rows of a group";
    if (decision.second == kTorch) return reason;
    const GroupedKernel& second = grouped_kernel(decision.second);
    const bool compares_tiles = decision.few_rows == 0 && second.forms == form_bit(Divided::kRows);
    return reason + "; " + second.name + (compares_tiles ? " if its tiles take less time" : " if few groups have rows");
  }
  if (decision.source == Source::kForced) return "forced: torch was requested";
  switch (decision.remark) {
    case Remark::kTorchFaster: return "model: torch is faster at these sizes";
    case Remark::kMayUseTf32: return "fallback: torch may use TF32 here, as its flags or the call's float32 mode say";
    case Remark::kTorchRefuses: return "fallback: torch refuses operands whose rows are not at multiples of 16 bytes";
    case Remark::kNamesOther: return "fallback: the context names a kernel, and it is none for grouped matmuls";
    default: return "fallback: no kernel of ours takes this grouped matmul";
  }
}

std::string why_not(int index, const GroupedRequest& request, const DeviceFacts& facts) {
  Reason why;
  const Ways ways = ways_of(request, NumericsMode::kFast, Float32Mode::kStrict);
  return takes(grouped_kernel(index), ways, facts, &why) ? "" : why.text;
}

int grouped_kernel_count() {
  return kSm90GroupedKernels.count + kSm80GroupedKernels.count + kSimtGroupedKernels.count;
}

const GroupedKernel& grouped_kernel(int index) {
  for (const GroupedKernelList* list : {&kSm90GroupedKernels, &kSm80GroupedKernels}) {
    if (index < list->count) return list->kernels[index];
    index -= list->count;
  }
  return kSimtGroupedKernels.kernels[index];
}

Outcome plan_grouped(const GroupedRequest& request, GroupedPlan* plan) {
  const TensorView &a = request.a, &b = request.b;
  const auto is_matrix = [](const TensorView& x) { return x.ndim == 2 || x.ndim == 3; };
  const bool divides = a.ndim == 2 || b.ndim == 2;
  // What follows are errors that torch reports itself.
  if (!is_matrix(a) || !is_matrix(b) || divides != (request.offs != nullptr)) return plan->outcome = Outcome::kTorch;
  if (request.offs != nullptr && (request.offs->ndim != 1 || !request.offs_is_int32)) {
    return plan->outcome = Outcome::kTorch;
  }
  if (const std::string error = size_error(request); !error.empty()) return invalid(error, plan);
  const bool is_plain = request.has_known_dtypes && a.dtype == b.dtype && request.out_dtype == a.dtype;
  if (!divides) {
    plan->is_bmm = is_plain && request.left == HGEMM_LEFT_NOT && grouped_pitch(b.sizes[2], a.dtype) == b.sizes[2];
    return plan->outcome = Outcome::kTorch;
  }
  if (!is_plain) return plan->outcome = Outcome::kTorch;

  const NumericsMode numerics = standing_numerics();
  Problem modes;  // the modes that the active context, or the default, asks for
  modes.dtype = a.dtype;
  ask_for_modes(kAuto, kAuto, request.allows_tf32, &modes);
  const Ways ways = ways_of(request, numerics, modes.float32);
  GroupedJob& job = plan->job;
  job.asked = request.variant;
  job.ordinal = request.ordinal;
  job.site = current_site(request.in_backward);
  job.grouped = ways.called;
  const Problem& p = ways.called.product;
  const DeviceFacts* const facts = usable_device(request.ordinal);
  GroupedDecision decision;
  if (request.left == HGEMM_LEFT_NOT && facts != nullptr) {
    const int standing = request.variant == kAuto ? standing_choice(p) : kAuto;
    if (standing != kAuto) {
      decision = torchs(Remark::kNamesOther);
      if (standing == kTorch) decision.source = Source::kForced;
    } else {
      GroupedTimes times = request.variant == kAuto ? times_of(ways, *facts) : nullptr;
      const bool untimed = times == nullptr || times->empty();
      if (request.variant == kAuto && untimed) times = tune_where_asked(request, ways, *facts);
      decision = decide(ways, *facts, times, request.variant, request.as_torch);
    }
  }
  if (decision.kernel == kTorch) {
    if (must_be_ours(ways.called)) {
      plan->message = unheld(p, "no kernel of ours takes this grouped matmul");
      return plan->outcome = Outcome::kRefused;
    }
    if (request.variant >= 0) {
      plan->message = "hgemm: " + std::string(grouped_kernel(request.variant).name) + " cannot run the matmul of a " +
                      text_of(a) + " and b " + text_of(b);
      return plan->outcome = Outcome::kRefused;
    }
    if (context_holds()) count(&job, decision, request.left);
    return plan->outcome = Outcome::kTorch;
  }
  job.facts = *facts;
  job.facts.sm_count = sms_of(request.stream, request.ordinal, facts->sm_count);
  use_kernel(decision.kernel, ways, plan);
  job.second = decision.second;
  job.grouped.few_rows = decision.few_rows;
  set_result(plan);
  if (context_holds()) count(&job, decision, HGEMM_LEFT_NOT);
  return plan->outcome = Outcome::kOurs;
}

Outcome plan_grouped_with_less(GroupedPlan* plan) {
  GroupedJob& job = plan->job;
  if (job.asked != kAuto) return plan->outcome = Outcome::kRefused;
  GroupedDecision decision;
  HgemmLeft left = HGEMM_LEFT_MEMORY;
  if (job.in_place != kTorch) {
    GroupedProduct& grouped = job.grouped;
    Problem& p = grouped.product;
    if (job.is_transposed) {
      std::swap(p.m, p.n);
      p.d.row_stride = grouped_pitch(p.n, p.dtype);
      grouped.divided = Divided::kColumns;
    }
    p.a = job.a;
    p.b = job.b;
    plan->finishes = false;
    p.bias = nullptr;
    p.act = Activation::kNone;
    job.second = kTorch;
    job.is_transposed = plan->copies_a = plan->copies_b = false;
    job.kernel = std::exchange(job.in_place, kTorch);
    set_result(plan);
    decision = ours(job.kernel);
    left = HGEMM_LEFT_NOT;
    plan->outcome = Outcome::kOurs;
  } else {
    const bool must = job.grouped.product.numerics == NumericsMode::kBatchInvariantOrRaise;
    if (must) return plan->outcome = Outcome::kRefused;
    plan->outcome = Outcome::kTorch;
  }
  if (job.counted.ledger != 0) {
    uncount_call(job.counted);
    count(&job, decision, left);
  }
  return plan->outcome;
}

Status launch(const GroupedJob& job, void* d, void* a_copy, void* b_copy, Stream stream) {
  GroupedProduct grouped = job.grouped;
  grouped.product.d.data = d;
  if (a_copy != nullptr) grouped.product.a.data = a_copy;
  if (b_copy != nullptr) grouped.product.b.data = b_copy;
  int index = job.kernel;
  if (job.second != kTorch) {
    if (grouped.divided == Divided::kRows && grouped.few_rows == 0) {
      grouped.tiles[0] = work_tiles(grouped, index, job.facts.sm_count, 1);
      grouped.tiles[1] = work_tiles(grouped, job.second, job.facts.sm_count, kLeastSecondGain);
    }
    grouped.launch = Launch::kFirst;
    if (const Status e = launch_sm90_grouped(index, grouped, job.facts, stream)) return e;
    grouped.launch = Launch::kSecond;
    index = job.second;
  }
  if (index < kSm90GroupedKernels.count) return launch_sm90_grouped(index, grouped, job.facts, stream);
  index -= kSm90GroupedKernels.count;
  if (index < kSm80GroupedKernels.count) return launch_sm80_grouped(index, grouped, stream);
  return launch_simt_grouped(index - kSm80GroupedKernels.count, grouped, stream);
}

std::string launch_error(const GroupedJob& job, Status status) {
  return std::string("hgemm: ") + grouped_kernel(job.kernel).name + " failed to launch: " + status_string(status);
}

}  // namespace hgemm
