#include "dispatch/plan.h"

#include <algorithm>
#include <atomic>
#include <type_traits>
#include <utility>

#include "core/device.h"
#include "dispatch/c_api.h"
#include "dispatch/choose.h"
#include "dispatch/context.h"
#include "dispatch/devices.h"
#include "dispatch/explain.h"
#include "dispatch/invariance.h"
#include "dispatch/registry.h"
#include "dispatch/select.h"
#include "dispatch/stats.h"

namespace hgemm {
namespace {

static_assert(std::is_trivially_copyable_v<Job>);

/// A placeholder for memory that is still to be allocated, where null would mean that no memory is wanted. Its
/// alignment is 16 bytes: allocators align to more than that, and the dispatcher distinguishes no more.
void* to_be_allocated() {
  return reinterpret_cast<void*>(uintptr_t{16});
}

Outcome refuse(std::string message, Plan* plan) {
  plan->message = std::move(message);
  return plan->outcome = Outcome::kRefused;
}

Outcome leave_to_torch(Plan* plan) {
  return plan->outcome = Outcome::kTorch;
}

/// Leaves a call to torch for the reason `why`, without asking for a decision, and counts it. Refuses the call instead
/// where torch must not compute it.
Outcome leave_undecided(const Request& request, HgemmLeft why, Plan* plan) {
  const Problem& p = plan->canonical.problem;
  if (must_be_ours(p)) {
    const bool no_device = why == HGEMM_LEFT_DEVICE;
    return refuse(unheld(p, no_device ? fault_of_device(request.ordinal) : hgemm_left_reason(why)), plan);
  }
  if (context_holds()) {
    CounterPlace place;
    const Decision torchs;
    count_call({.problem = p,
                .ordinal = request.ordinal,
                .cc = 0,
                .decision = torchs,
                .left = why,
                .site = current_site(request.in_backward)},
               &place);
  }
  return leave_to_torch(plan);
}

/// Whether out= already has the result's shape.
bool fits(const TensorView& out, const Canonical& result) {
  return out.ndim == result.out_ndim && std::equal(out.sizes, out.sizes + out.ndim, result.out_sizes);
}

/// The kernel that the call names, else the one that the active context or the default names. It is kAuto or kTorch
/// where none of them names a kernel.
int asked_for(const Request& request, const Problem& p) {
  return request.variant == kAuto ? standing_choice(p) : request.variant;
}

/// Turns the operands and modes into plan->canonical. Returns false, with the message set, where shapes do not fit.
bool read(const Request& request, Plan* plan) {
  if (!canonicalize(request.operands, &plan->canonical)) {
    plan->message = plan->canonical.error;
    return false;
  }
  if (request.fixed_out != nullptr && !fits(*request.fixed_out, plan->canonical)) {
    plan->message = std::string("hgemm::") + op_name(request.operands.op) + ": out " +
                    shape_text(request.fixed_out->ndim, request.fixed_out->sizes) + " must have the result's shape " +
                    shape_text(plan->canonical.out_ndim, plan->canonical.out_sizes);
    return false;
  }
  Problem& p = plan->canonical.problem;
  if (request.out != nullptr) p.d.data = const_cast<void*>(request.out->data);
  p.most_workspace = most_workspace();
  if (request.saves_pre_activation) p.pre_activation = to_be_allocated();
  if (request.operands.op == Op::kLinearGated) p.act = Activation::kNone;
  ask_for_modes(request.numerics, request.float32, request.allows_tf32, &p);
  // Where DType has no name for the dtype, the problem's is a placeholder. It may be kF32, but no float32 mode applies.
  if (!request.has_known_dtype) p.float32 = Float32Mode::kStrict;
  // A named kernel gets the matrices that the caller has: it may be one for few rows.
  if (p.rows_are_batch && asked_for(request, p) != kAuto) p = as_called(p);
  return true;
}

/// Whether the call names a kernel that does not take the operands' dtype, which is neither float16 nor bfloat16. Such
/// a call goes to torch instead of being refused.
bool names_kernel_of_other_dtype(const Request& request, const Problem& p) {
  return request.variant >= 0 && !p.is_half() &&
         (variant(request.variant).dtypes >> static_cast<int>(p.dtype) & 1u) == 0;
}

/// Op::kLinearGated: makes the kernel apply the gate in its epilogue, if it can.
void gate_where_possible(const Request& request, Plan* plan) {
  Problem& p = plan->canonical.problem;
  const Variant& v = variant(plan->job.variant);
  if (request.operands.op != Op::kLinearGated || v.gates == nullptr || !v.gates(p)) return;
  p.gated = true;
  p.act = request.operands.act;
  p.d.row_stride = p.n / 2;
  plan->gates = true;
}

}  // namespace

Outcome make_plan(const Request& request, Plan* plan) {
  if (!read(request, plan)) return plan->outcome = Outcome::kInvalid;
  const Problem& p = plan->canonical.problem;
  if (!request.has_known_dtype || names_kernel_of_other_dtype(request, p)) {
    return must_be_ours(p) ? refuse(unheld(p, "no kernel supports its dtype"), plan) : leave_to_torch(plan);
  }
  if (request.left != HGEMM_LEFT_NOT || plan->canonical.empty()) return leave_undecided(request, request.left, plan);

  const DeviceFacts* const facts = usable_device(request.ordinal);
  if (facts == nullptr) {
    const int asked = asked_for(request, p);
    if (asked < 0) return leave_undecided(request, HGEMM_LEFT_DEVICE, plan);
    return refuse(std::string("hgemm: ") + variant_name(asked) + " cannot run on cuda:" +
                      std::to_string(request.ordinal) + ": " + fault_of_device(request.ordinal),
                  plan);
  }
  if (request.out != nullptr && !fits(*request.out, plan->canonical)) {
    return leave_undecided(request, HGEMM_LEFT_OUT, plan);
  }

  Job& job = plan->job;
  job.facts = *facts;
  job.facts.sm_count = sms_of(request.stream, request.ordinal, facts->sm_count);
  job.variant = choose(p, job.facts, request.ordinal, request.variant, request.in_backward, &job.counted).variant;
  if (job.variant == kRefused) return refuse(refusal(p, job.facts, asked_for(request, p)), plan);
  if (job.variant == kTorch) return leave_to_torch(plan);

  job.asked = asked_for(request, p);
  job.ordinal = request.ordinal;
  job.site = current_site(request.in_backward);
  gate_where_possible(request, plan);
  job.problem = p;
  plan->workspace = static_cast<int64_t>(variant(job.variant).workspace(p, job.facts));
  return plan->outcome = Outcome::kOurs;
}

Outcome plan_with_less(Job* job, int64_t* workspace) {
  constexpr int64_t kLeast = int64_t{1} << 20;  // below this, only kernels without workspace are tried
  Problem& p = job->problem;
  const auto count_as = [job, &p](const Decision& decision, HgemmLeft why) {
    if (job->counted.ledger == 0) return;
    uncount_call(job->counted);
    CounterPlace place;
    count_call({.problem = p,
                .ordinal = job->ordinal,
                .cc = job->facts.cc,
                .decision = decision,
                .left = why,
                .site = job->site},
               &place);
    job->counted = place;
  };
  if (job->asked == kAuto && !must_be_ours(p)) {
    count_as(Decision{}, HGEMM_LEFT_MEMORY);
    return Outcome::kTorch;
  }
  while (*workspace > 0) {
    p.most_workspace = *workspace > kLeast ? *workspace / 4 : 0;
    *workspace = 0;
    const Decision decision = select(p, job->facts, job->asked);
    if (decision.variant < 0) {
      *workspace = p.most_workspace;
      continue;
    }
    job->variant = decision.variant;
    *workspace = static_cast<int64_t>(variant(job->variant).workspace(p, job->facts));
    count_as(decision, HGEMM_LEFT_NOT);
    return Outcome::kOurs;
  }
  if (job->asked != kAuto || p.numerics == NumericsMode::kBatchInvariantOrRaise) return Outcome::kRefused;
  count_as(Decision{}, HGEMM_LEFT_MEMORY);
  return Outcome::kTorch;
}

Status launch(const Job& job, const Memory& memory, Stream stream) {
  Problem p = job.problem;
  p.d.data = memory.d;
  p.pre_activation = memory.pre_activation;
  if (memory.a_copy != nullptr) p.a.data = memory.a_copy;
  if (memory.b_copy != nullptr) p.b.data = memory.b_copy;
  return variant(job.variant).launch(p, job.facts, memory.workspace, stream);
}

std::string launch_error(const Job& job, Status status) {
  return std::string("hgemm: ") + variant(job.variant).name + " failed to launch: " + status_string(status);
}

}  // namespace hgemm
