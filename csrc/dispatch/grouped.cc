#include "dispatch/grouped.h"

#include <algorithm>
#include <limits>
#include <type_traits>
#include <utility>

#include "core/chip.h"
#include "core/device.h"
#include "core/variant_list.h"
#include "dispatch/choose.h"
#include "dispatch/context.h"
#include "dispatch/decision.h"
#include "dispatch/devices.h"
#include "dispatch/invariance.h"
#include "dispatch/stats.h"
#include "kernels/variants.h"

namespace hgemm {
namespace {

static_assert(std::is_trivially_copyable_v<GroupedJob>);

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

/// The product as kernels see it. Its D has no memory yet. With the columns of b divided it is that of the transposes.
GroupedProduct product_of(const GroupedRequest& request) {
  const bool is_transposed = request.a.ndim == 3;
  const TensorView& a = is_transposed ? request.b : request.a;
  const TensorView& b = is_transposed ? request.a : request.b;
  GroupedProduct grouped;
  Problem& p = grouped.product;
  p.m = a.sizes[is_transposed ? 1 : 0];
  p.n = b.sizes[b.ndim - (is_transposed ? 2 : 1)];
  p.k = a.sizes[is_transposed ? 0 : 1];
  p.batch[1] = request.offs->sizes[0];
  p.a = matrix_of(a, is_transposed);
  p.b = matrix_of(b, is_transposed);
  p.d = {nullptr, grouped_pitch(p.n, a.dtype), 1, {0, 0}};
  p.dtype = p.out_dtype = a.dtype;
  grouped.ends = static_cast<const int32_t*>(request.offs->data);
  if (b.ndim == 2) grouped.divided = Divided::kInner;
  if (grouped.divided == Divided::kInner) p.d.batch_stride[1] = p.m * p.d.row_stride;
  return grouped;
}

bool is_row_major(const Matrix& x, int64_t columns) {
  return x.col_stride == 1 && x.row_stride >= columns;
}
bool is_column_major(const Matrix& x, int64_t rows) {
  return x.row_stride == 1 && x.col_stride >= rows;
}

/// Replaces an operand by a copy in the order that kernels take, which the door is to make, where it has the other
/// order and torch would take it.
void arrange(GroupedProduct* grouped, GroupedPlan* plan) {
  Problem& p = grouped->product;
  if (grouped->divided == Divided::kRows) {
    plan->copies_a = !is_row_major(p.a, p.k) && is_column_major(p.a, p.m) && alignment_a(p) == 16;
    if (plan->copies_a) p.a = {nullptr, grouped_pitch(p.k, p.dtype), 1, {0, 0}};
    return;
  }
  plan->copies_a = !is_column_major(p.a, p.m) && is_row_major(p.a, p.k) && alignment_a(p) == 16;
  plan->copies_b = !is_row_major(p.b, p.n) && is_column_major(p.b, p.k) && alignment_b(p) == 16;
  if (plan->copies_a) p.a = {nullptr, 1, grouped_pitch(p.m, p.dtype), {0, 0}};
  if (plan->copies_b) p.b = {nullptr, grouped_pitch(p.n, p.dtype), 1, {0, 0}};
}

/// Whether grouped kernels can run the product: TMA can read the operands in place, and sizes fit 32 bits.
bool is_eligible(const GroupedProduct& grouped, const DeviceFacts& facts) {
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max() / 2;
  const Problem& p = grouped.product;
  const bool by_rows = grouped.divided == Divided::kRows;
  const int64_t row_tiles = by_rows ? p.m / 64 + std::min(p.m, p.batch[1]) : ceil_div(p.m, 64) * p.batch[1];
  const bool are_ordered = by_rows ? is_row_major(p.a, p.k) && (is_row_major(p.b, p.n) || is_column_major(p.b, p.k))
                                   : is_column_major(p.a, p.m) && is_row_major(p.b, p.n);
  return kHasSm90aCode && facts.cc == kHopper && p.is_half() && !p.empty() && p.m <= kMost && p.n <= kMost / 1024 &&
         p.k <= kMost && row_tiles * ceil_div(p.n, 128) <= kMost && are_ordered && alignment_a(p) == 16 &&
         alignment_b(p) == 16;
}

/// Whether a kernel of the list can run a product that is_eligible().
bool takes(const GroupedKernel& kernel, const GroupedProduct& grouped) {
  return kernel.divided == grouped.divided && grouped.product.batch[1] <= kernel.max_groups;
}

// The rows that a group has on average up to which each of the first kernels of the list is chosen, the last one beyond
// them. Timed on an H100 with the experts of five models, spread evenly and by Zipf's law
// (kernels/sm90_wgmma/NOTES.md).
constexpr double kMostRows[] = {8, 64, 192, 384};
constexpr int kTwoTiles = 3, kManyRows = 4;

/// The rows of a group, or its k, on average over as many groups as may have any.
double mean_rows(const GroupedProduct& grouped) {
  const Problem& p = grouped.product;
  const int64_t all = grouped.divided == Divided::kRows ? p.m : p.k;
  return static_cast<double>(all) / static_cast<double>(std::min(all, p.batch[1]));
}

/// Whether torch's kernel is faster. Torch has one for bfloat16 alone. The rule separates the cases that were timed on
/// an H100: 20 models, evenly and by Zipf's law (benchmarks/grouped.py).
bool is_torch_faster(const GroupedProduct& grouped) {
  const Problem& p = grouped.product;
  if (p.dtype != DType::kBF16) return false;
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

/// The share of a kernel's work tiles that lies inside of D's columns.
double share_of_columns(int64_t n, int kernel) {
  const int64_t columns = grouped_kernel(kernel).columns;
  return static_cast<double>(n) / static_cast<double>(ceil_div(n, columns) * columns);
}

/// Counts a call as the report shows it. `kernel`: kTorch, or an index into the list of grouped kernels.
void count(GroupedJob* job, int kernel, HgemmLeft left) {
  Problem counted = job->grouped.product;
  counted.batch[1] = 1;  // the divided dimension is that of all groups together
  if (job->is_transposed) std::swap(counted.m, counted.n);
  Decision decision;
  decision.variant = kernel == kTorch ? kTorch : kFirstGroupedKernel + kernel;
  decision.source = job->asked == kAuto ? Source::kModel : Source::kForced;
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

}  // namespace

int choose_grouped(const GroupedProduct& grouped, const DeviceFacts& facts, bool may_be_torchs) {
  const Problem& p = grouped.product;
  if (!is_eligible(grouped, facts) ||
      (p.numerics == NumericsMode::kFast && may_be_torchs && is_torch_faster(grouped))) {
    return kTorch;
  }
  int kernel = grouped_kernel_count() - 1;
  if (grouped.divided == Divided::kRows) {
    kernel = 0;
    for (const double most_rows : kMostRows) kernel += mean_rows(grouped) > most_rows;
    if (kernel == kManyRows && share_of_columns(p.n, kTwoTiles) > 1.04 * share_of_columns(p.n, kManyRows)) {
      kernel = kTwoTiles;
    }
  }
  return takes(grouped_kernel(kernel), grouped) ? kernel : kTorch;
}

int grouped_kernel_count() {
  return kSm90GroupedKernels.count;
}

const GroupedKernel& grouped_kernel(int index) {
  return kSm90GroupedKernels.kernels[index];
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

  GroupedJob& job = plan->job;
  GroupedProduct& grouped = job.grouped;
  grouped = product_of(request);
  job.is_transposed = a.ndim == 3;
  job.asked = request.variant;
  job.ordinal = request.ordinal;
  job.site = current_site(request.in_backward);
  arrange(&grouped, plan);
  Problem& p = grouped.product;
  ask_for_modes(kAuto, kAuto, false, &p);
  const DeviceFacts* const facts = usable_device(request.ordinal);
  const bool context_names_one = request.variant == kAuto && standing_choice(p) != kAuto;
  int kernel = kTorch;
  if (request.left == HGEMM_LEFT_NOT && facts != nullptr && !context_names_one) {
    if (request.variant == kAuto) {
      kernel = choose_grouped(grouped, *facts, !(plan->copies_a || plan->copies_b || job.is_transposed));
    } else if (request.variant >= 0 && is_eligible(grouped, *facts) &&
               takes(grouped_kernel(request.variant), grouped)) {
      kernel = request.variant;
    }
  }
  if (kernel == kTorch) {
    if (must_be_ours(grouped)) {
      plan->message = unheld(p, "no kernel of ours takes this grouped product");
      return plan->outcome = Outcome::kRefused;
    }
    if (request.variant >= 0) {
      plan->message = "hgemm: " + std::string(grouped_kernel(request.variant).name) + " cannot run the product of a " +
                      text_of(a) + " and b " + text_of(b);
      return plan->outcome = Outcome::kRefused;
    }
    if (context_holds()) count(&job, kTorch, request.left);
    return plan->outcome = Outcome::kTorch;
  }
  job.facts = *facts;
  job.facts.sm_count = sms_of(request.stream, request.ordinal, facts->sm_count);
  job.kernel = kernel;
  plan->groups = grouped.divided == Divided::kInner ? p.batch[1] : 0;
  plan->rows = p.m;
  plan->columns = p.n;
  plan->pitch = p.d.row_stride;
  if (context_holds()) count(&job, kernel, HGEMM_LEFT_NOT);
  return plan->outcome = Outcome::kOurs;
}

Outcome plan_grouped_with_less(GroupedJob* job) {
  if (job->asked != kAuto || job->grouped.product.numerics == NumericsMode::kBatchInvariantOrRaise) {
    return Outcome::kRefused;
  }
  if (job->counted.ledger != 0) {
    uncount_call(job->counted);
    count(job, kTorch, HGEMM_LEFT_MEMORY);
  }
  return Outcome::kTorch;
}

Status launch(const GroupedJob& job, void* d, void* a_copy, void* b_copy, Stream stream) {
  GroupedProduct grouped = job.grouped;
  grouped.product.d.data = d;
  if (a_copy != nullptr) grouped.product.a.data = a_copy;
  if (b_copy != nullptr) grouped.product.b.data = b_copy;
  return launch_grouped(job.kernel, grouped, job.facts, stream);
}

std::string launch_error(const GroupedJob& job, Status status) {
  return std::string("hgemm: ") + grouped_kernel(job.kernel).name + " failed to launch: " + status_string(status);
}

}  // namespace hgemm
