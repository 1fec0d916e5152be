#include "dispatch/gemm_api.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <string>
#include <type_traits>

#include "core/device.h"
#include "dispatch/c_api.h"
#include "dispatch/canonical.h"
#include "dispatch/choose.h"
#include "dispatch/context.h"
#include "dispatch/devices.h"
#include "dispatch/explain.h"
#include "dispatch/invariance.h"
#include "dispatch/registry.h"
#include "dispatch/stats.h"

namespace hgemm {
namespace {

/// HgemmPlan::state.
struct State {
  Problem problem;
  DeviceFacts facts;
  int variant;
};
static_assert(sizeof(State) <= sizeof(HgemmPlan::state) && std::is_trivially_copyable_v<State>);

thread_local std::string message;

TensorView view_of(const HgemmOperand& x) {
  return {x.data, x.ndim, x.sizes, x.strides, static_cast<DType>(x.dtype)};
}

/// False where shapes do not fit, or an operand would have to be copied first.
bool read(const HgemmProduct& product, Canonical* canonical) {
  Operands o;
  o.op = static_cast<Op>(product.op);
  o.a = view_of(product.a);
  o.b = view_of(product.b);
  const TensorView c = view_of(product.c);
  if (product.c.ndim >= 0) o.c = &c;
  o.alpha = product.alpha;
  o.beta = product.beta;
  o.act = static_cast<Activation>(product.act);
  o.out_dtype = static_cast<DType>(product.out_dtype);
  if (!canonicalize(o, canonical) || canonical->copy_a.needed || canonical->copy_b.needed) return false;
  if (product.d.ndim >= 0) canonical->problem.d.data = const_cast<void*>(product.d.data);
  ask_for_what_stands(product.allows_tf32 != 0, &canonical->problem);
  return true;
}

/// Counts a product as torch's; refuses it where it must not be.
int leave_to_torch(const HgemmProduct& product, const Problem& p, HgemmLeft why) {
  if (must_be_ours(p)) {
    message = unheld(p, why == HGEMM_LEFT_DEVICE ? fault_of_device(product.ordinal) : hgemm_left_reason(why));
    return HGEMM_REFUSED;
  }
  const Decision torchs;
  call_counter(p, product.ordinal, torchs, why, current_site(product.in_backward != 0))
      .fetch_add(1, std::memory_order_relaxed);
  return HGEMM_TORCH;
}

/// Whether out= has the result's shape already.
bool fits(const HgemmOperand& d, const Canonical& result) {
  return d.ndim == result.out_ndim && std::equal(d.sizes, d.sizes + d.ndim, result.out_sizes);
}

int plan(const HgemmProduct* product, HgemmPlan* plan) {
  try {
    Canonical canonical;
    State state;
    if (!read(*product, &canonical)) return HGEMM_TORCH;
    const Problem& p = canonical.problem;
    const DeviceFacts* const facts = usable_device(product->ordinal);
    if (facts == nullptr) {
      const int asked = standing_choice(p);
      if (asked < 0) return leave_to_torch(*product, p, HGEMM_LEFT_DEVICE);
      message = std::string("hgemm: ") + variant_name(asked) + " cannot run: " + fault_of_device(product->ordinal);
      return HGEMM_REFUSED;
    }
    state.facts = *facts;
    if (product->d.ndim >= 0 && !fits(product->d, canonical)) return leave_to_torch(*product, p, HGEMM_LEFT_OUT);
    state.variant = choose(p, state.facts, product->ordinal, kAuto, product->in_backward != 0).variant;
    if (state.variant == kRefused) {
      message = refusal(p, state.facts, standing_choice(p));
      return HGEMM_REFUSED;
    }
    if (state.variant == kTorch || canonical.empty()) return HGEMM_TORCH;
    plan->ndim = canonical.out_ndim;
    std::copy_n(canonical.out_sizes, canonical.out_ndim, plan->sizes);
    plan->workspace = static_cast<int64_t>(variant(state.variant).workspace(p, state.facts));
    state.problem = p;
    std::memcpy(plan->state, &state, sizeof(state));
    return HGEMM_OURS;
  } catch (const std::exception& error) {
    message = error.what();
    return HGEMM_REFUSED;
  }
}

int launch(const HgemmPlan* plan, void* d, void* workspace, void* stream) {
  State state;
  std::memcpy(&state, plan->state, sizeof(state));
  state.problem.d.data = d;
  const Variant& v = variant(state.variant);
  const Status status = v.launch(state.problem, state.facts, workspace, stream);
  if (status != 0) message = std::string("hgemm: ") + v.name + " failed to launch: " + status_string(status);
  return status;
}

int leave(const HgemmProduct* product, int why) {
  Canonical canonical;
  if (!read(*product, &canonical)) return HGEMM_TORCH;
  return leave_to_torch(*product, canonical.problem, static_cast<HgemmLeft>(why));
}

constexpr HgemmGemmApi kApi = {{sizeof(HgemmGemmApi), sizeof(HgemmProduct), sizeof(HgemmPlan)},
                               0,
                               [] { return static_cast<int>(context_holds()); },
                               plan,
                               launch,
                               leave,
                               [] { return static_cast<int>(standing_float32() == Float32Mode::kSplit); },
                               [] { return message.c_str(); }};

}  // namespace
}  // namespace hgemm

const char* hgemm_left_reason(int why) {
  constexpr const char* kReasons[] = {"",
                                      "out= would be resized, is not contiguous, or overlaps an operand",
                                      "alpha is 0",
                                      "a tensor with names, a lazy conjugation or negation, or without memory",
                                      "gelu of _addmm_activation",
                                      "this library cannot run on the device: `hgemm doctor` says why"};
  return kReasons[why];
}

const HgemmGemmApi* hgemm_gemm_api(void) {
  return &hgemm::kApi;
}
