// The plain C functions through which csrc/aten calls plan.h.
#include "dispatch/gemm_api.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <string>

#include "dispatch/c_api.h"
#include "dispatch/context.h"
#include "dispatch/grouped.h"
#include "dispatch/plan.h"
#include "dispatch/stats.h"

namespace hgemm {
namespace {

static_assert(sizeof(Job) <= sizeof(HgemmPlan::state) && sizeof(GroupedJob) <= sizeof(HgemmGroupedPlan::state));

thread_local std::string message;

TensorView view_of(const HgemmOperand& x, bool is_conjugated = false) {
  return {.data = x.data,
          .ndim = x.ndim,
          .sizes = x.sizes,
          .strides = x.strides,
          .dtype = static_cast<DType>(x.dtype),
          .is_conjugated = is_conjugated};
}

/// `c` and `out` are views of the product's c and d. The request points to them, so they must outlive it.
Request request_of(const HgemmProduct& product, const TensorView& c, const TensorView& out) {
  return {.operands = {.op = static_cast<Op>(product.op),
                       .a = view_of(product.a, (product.conjugated & 1) != 0),
                       .b = view_of(product.b, (product.conjugated & 2) != 0),
                       .c = product.c.ndim >= 0 ? &c : nullptr,
                       .alpha = product.alpha,
                       .beta = product.beta,
                       .act = static_cast<Activation>(product.act),
                       .out_dtype = static_cast<DType>(product.out_dtype)},
          .out = product.d.ndim >= 0 ? &out : nullptr,
          .ordinal = product.ordinal,
          .stream = product.stream,
          .allows_tf32 = product.allows_tf32 != 0,
          .in_backward = product.in_backward != 0,
          .left = static_cast<HgemmLeft>(product.left)};
}

void describe_copy(const Copy& copy, HgemmCopy* out) {
  out->needed = copy.needed;
  if (!copy.needed) return;
  out->ndim = copy.ndim;
  std::copy_n(copy.sizes, copy.ndim, out->sizes);
  std::copy_n(copy.strides, copy.ndim, out->strides);
}

int plan(const HgemmProduct* product, HgemmPlan* out) {
  try {
    const TensorView c = view_of(product->c), d = view_of(product->d);
    Plan plan;
    switch (make_plan(request_of(*product, c, d), &plan)) {
      case Outcome::kInvalid:
      case Outcome::kTorch: return HGEMM_TORCH;
      case Outcome::kRefused: message = plan.message; return HGEMM_REFUSED;
      case Outcome::kOurs: break;
    }
    out->ndim = plan.canonical.out_ndim;
    std::copy_n(plan.canonical.out_sizes, plan.canonical.out_ndim, out->sizes);
    describe_copy(plan.canonical.copy_a, &out->a);
    describe_copy(plan.canonical.copy_b, &out->b);
    out->workspace = plan.workspace;
    std::memcpy(out->state, &plan.job, sizeof(plan.job));
    return HGEMM_OURS;
  } catch (const std::exception& error) {
    message = error.what();
    return HGEMM_REFUSED;
  }
}

int plan_again(HgemmPlan* plan) {
  try {
    Job job;
    std::memcpy(&job, plan->state, sizeof(job));
    const Outcome outcome = plan_with_less(&job, &plan->workspace);
    std::memcpy(plan->state, &job, sizeof(job));
    return outcome == Outcome::kOurs ? HGEMM_OURS : outcome == Outcome::kTorch ? HGEMM_TORCH : HGEMM_REFUSED;
  } catch (const std::exception&) {
    return HGEMM_REFUSED;
  }
}

int launch_planned(const HgemmPlan* plan, const HgemmMemory* memory, void* stream) {
  Job job;
  std::memcpy(&job, plan->state, sizeof(job));
  const Memory on_device{.d = memory->d,
                         .pre_activation = nullptr,
                         .a_copy = memory->a_copy,
                         .b_copy = memory->b_copy,
                         .workspace = memory->workspace};
  const Status status = launch(job, on_device, stream);
  if (status != 0) message = launch_error(job, status);
  return status;
}

/// Writes a plan where the caller has it, and returns its HgemmPlanned.
int give(const GroupedPlan& plan, HgemmGroupedPlan* out) {
  out->groups = plan.groups;
  out->rows = plan.rows;
  out->columns = plan.columns;
  out->pitch = plan.pitch;
  out->is_bmm = plan.is_bmm;
  out->copies_a = plan.copies_a;
  out->copies_b = plan.copies_b;
  out->is_transposed = plan.job.is_transposed;
  std::memcpy(out->state, &plan.job, sizeof(plan.job));
  return plan.outcome == Outcome::kOurs ? HGEMM_OURS : plan.outcome == Outcome::kTorch ? HGEMM_TORCH : HGEMM_REFUSED;
}

int plan_of_grouped(const HgemmGrouped* grouped, HgemmGroupedPlan* out) {
  try {
    const TensorView offs = view_of(grouped->offs);
    GroupedPlan plan;
    plan_grouped({.a = view_of(grouped->a),
                  .b = view_of(grouped->b),
                  .has_known_dtypes = grouped->a.dtype >= 0 && grouped->b.dtype >= 0 && grouped->out_dtype >= 0,
                  .out_dtype = static_cast<DType>(grouped->out_dtype),
                  .offs = grouped->offs.ndim >= 0 ? &offs : nullptr,
                  .offs_is_int32 = grouped->offs_is_int32 != 0,
                  .offs_is_elsewhere = grouped->offs_is_elsewhere != 0,
                  .ordinal = grouped->ordinal,
                  .stream = grouped->stream,
                  .allows_tf32 = grouped->allows_tf32 != 0,
                  .as_torch = true,
                  .in_backward = grouped->in_backward != 0,
                  .left = static_cast<HgemmLeft>(grouped->left)},
                 &plan);
    message = plan.message;
    return give(plan, out);
  } catch (const std::exception& error) {
    message = error.what();
    return HGEMM_REFUSED;
  }
}

int plan_grouped_again(HgemmGroupedPlan* out) {
  try {
    GroupedPlan plan;
    std::memcpy(&plan.job, out->state, sizeof(plan.job));
    plan_grouped_with_less(&plan);
    return give(plan, out);
  } catch (const std::exception& error) {
    message = error.what();
    return HGEMM_REFUSED;
  }
}

int launch_planned_grouped(const HgemmGroupedPlan* plan, void* d, void* a_copy, void* b_copy, void* stream) {
  GroupedJob job;
  std::memcpy(&job, plan->state, sizeof(job));
  const Status status = launch(job, d, a_copy, b_copy, stream);
  if (status != 0) message = launch_error(job, status);
  return status;
}

constexpr HgemmGemmApi kApi = {
    .sizes = {sizeof(HgemmGemmApi), sizeof(HgemmProduct), sizeof(HgemmPlan), sizeof(HgemmGrouped),
              sizeof(HgemmGroupedPlan)},
    .reserved = 0,
    .active = [] { return static_cast<int>(context_holds()); },
    .plan = plan,
    .plan_with_less = plan_again,
    .launch = launch_planned,
    .plan_grouped = plan_of_grouped,
    .plan_grouped_with_less = plan_grouped_again,
    .launch_grouped = launch_planned_grouped,
    .error = [] { return message.c_str(); },
};

}  // namespace
}  // namespace hgemm

const char* hgemm_left_reason(int why) {
  constexpr const char* kReasons[] = {
      "",
      "out= has another shape or dtype than the result, is not contiguous, or overlaps an operand",
      "alpha is 0, so torch does not multiply",
      "a tensor has named dimensions, a lazy negation or no storage, or an addend or out= a lazy conjugation",
      "our kernels lack the gelu of torch's _addmm_activation",
      "our kernels cannot run on this GPU: `hgemm doctor` tells why",
      "not enough memory for the kernel's workspace or for copies of operands",
      "alpha or beta is complex",
      "beyond 65,536 kinds, matmuls are counted together, whatever kernel runs them"};
  static_assert(hgemm::kMostKinds == 65536);
  return kReasons[why];
}

const HgemmGemmApi* hgemm_gemm_api(void) {
  return &hgemm::kApi;
}
