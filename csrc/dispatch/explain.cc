#include "dispatch/explain.h"

#include <cmath>
#include <limits>
#include <utility>

#include "core/describe.h"
#include "core/format.h"
#include "dispatch/contenders.h"
#include "dispatch/estimates.h"
#include "dispatch/invariance.h"
#include "dispatch/margin.h"
#include "dispatch/registry.h"
#include "dispatch/select.h"
#include "dispatch/verdict.h"

namespace hgemm {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

void append(std::string* reasons, const std::string& reason) {
  if (!reasons->empty()) *reasons += "; ";
  *reasons += reason;
}

bool has_float32_modes(const Problem& p) {
  return p.dtype == DType::kF32 || p.dtype == DType::kC64;
}

bool leaves_to_tf32(const Problem& p) {
  return p.float32 == Float32Mode::kTf32;
}

/// A kernel as a candidate, still without times.
Candidate candidate_of(int id, const Problem& p, const DeviceFacts& facts, bool is_forced) {
  const Variant& v = variant(id);
  Candidate c{.variant = id, .predicted_us = kNaN, .measured_us = kNaN, .reason = ""};
  c.eligible = can_run(v, p, facts, &c.reason);
  c.forced_only = v.family == Family::kAdded || v.arithmetic == Arithmetic::kAccumulateF16;
  if (is_forced || c.forced_only || may_be_chosen(v, p)) return c;
  if (v.only_invariant) {
    c.forced_only = true;
    if (c.eligible) append(&c.reason, "chosen only with numerics=\"batch_invariant\"");
  } else if (has_float32_modes(p)) {
    c.eligible = false;
    append(&c.reason, leaves_to_tf32(p) ? "left to torch, which may use TF32" : "used only with float32=\"split\"");
  }
  return c;
}

Candidate torch_candidate(const Problem& p) {
  Candidate c{.variant = kTorch, .predicted_us = kNaN, .measured_us = kNaN, .reason = ""};
  if (must_be_ours(p)) {
    c.eligible = false;
    c.reason = "not batch-invariant";
  }
  return c;
}

void note_times(const Times& times, Candidate* candidate) {
  candidate->predicted_us = times.predicted;
  candidate->measured_us = times.measured;
}

std::string fallback_reason(const Problem& p, int cc, bool unasked) {
  const char* const warning = p.numerics == NumericsMode::kFast ? "" : "not batch-invariant, because torch runs it: ";
  const char* const way_out = !unasked            ? ""
                              : leaves_to_tf32(p) ? " where torch may use TF32"
                                                  : " without float32=\"split\"";
  return format("%snone of our kernels runs %s on sm_%d%s", warning, describe(p).c_str(), cc, way_out);
}

/// The reason for a decision that compared times.
std::string comparison_reason(const Problem& p, const Decision& d) {
  const char* basis = d.source == Source::kTable ? "measured" : "predicted";
  std::string reason = d.variant == kTorch
                           ? format("none of our kernels is %s to beat torch's %.1f us by more than %.3g %%", basis,
                                    d.torch_us, 100 * (d.margin - 1)) +
                                 (d.remark == Remark::kUnasked ? " without float32=\"split\"" : "")
                           : format("%s %.1f us against torch's %.1f us", basis, d.us, d.torch_us);
  if (p.numerics != NumericsMode::kFast) reason += ", the fastest batch-invariant kernel";
  if (d.neighbours > 0) {
    reason += format(" (corrected by the measured times of %d similar %s)", d.neighbours,
                     d.neighbours == 1 ? "shape" : "shapes");
  }
  if (d.measured_dtype >= 0) reason += format(" (times of %s)", dtype_name(static_cast<DType>(d.measured_dtype)));
  return reason;
}

}  // namespace

std::string reason_of(const Problem& p, int cc, const Decision& decision) {
  if (decision.source == Source::kForced) return format("%s was requested", variant_name(decision.variant));
  if (p.empty()) return "a size is 0, so there is nothing to multiply";
  if (decision.source == Source::kFallback) return fallback_reason(p, cc, decision.remark == Remark::kUnasked);
  if (decision.remark == Remark::kUnmeasuredChip) {
    if (p.dtype > DType::kF32) {  // no table has times of these (entry_of)
      return format("no times are known for sm_%d: 16-byte-aligned %s matmuls run on torch, and tuning measures none",
                    cc, dtype_name(p.dtype));
    }
    return format(
        "no times are known for sm_%d: 16-byte-aligned matmuls stay on torch until `hgemm tune` or tune=True measures "
        "them",
        cc);
  }
  return comparison_reason(p, decision);
}

Explanation explain(const Problem& p, const DeviceFacts& facts, int forced) {
  Explanation out;
  for (int id = 0; id < variant_count(); ++id) {
    out.candidates.push_back(candidate_of(id, p, facts, id == forced));
  }
  out.candidates.push_back(torch_candidate(p));

  const Question question(p, facts);
  Contenders contenders;
  Estimates estimates;
  Decision decision;
  if (!p.empty()) {
    find_contenders(question, &contenders);
    estimate(question, contenders, /*for_explanation=*/true, &estimates);
    decision = verdict_on(question, contenders, estimates, margin_of(question, contenders, estimates));
    note_times(estimates.torch, &out.candidates.back());
    for (int i = 0; i < contenders.count; ++i) {
      note_times(estimates.ours[i], &out.candidates[static_cast<size_t>(contenders.all[i].id)]);
    }
    for (Candidate& c : out.candidates) {  // kernels that only run where a call names them are no contenders
      if (c.eligible && std::isnan(c.predicted_us)) c.predicted_us = variant(c.variant).predict_us(p, facts);
    }
  }

  out.decision = forced == kAuto ? decision : select(p, facts, forced);
  out.reason = out.decision.variant == kRefused ? refusal(p, facts, forced) : reason_of(p, facts.cc, out.decision);
  return out;
}

std::string refusal(const Problem& p, const DeviceFacts& facts, int forced) {
  if (forced < 0) return unheld(p, forced == kAuto ? "no batch-invariant kernel supports it" : "torch was requested");
  std::string why, able;
  can_run(variant(forced), p, facts, &why);
  for (int id = 0; id < variant_count(); ++id) {
    if (variant(id).family == Family::kAdded) continue;  // there are many, and they are slower
    if (can_run(variant(id), p, facts, nullptr)) able += std::string(variant(id).name) + ", ";
  }
  return format("hgemm: %s does not support %s on sm_%d: %s. Use one of: %s%s", variant_name(forced),
                describe(p).c_str(), facts.cc, why.c_str(), able.c_str(), must_be_ours(p) ? "auto" : "torch");
}

}  // namespace hgemm
