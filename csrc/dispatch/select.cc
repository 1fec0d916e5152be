#include "dispatch/select.h"

#include <cmath>

#include "dispatch/contenders.h"
#include "dispatch/estimates.h"
#include "dispatch/invariance.h"
#include "dispatch/margin.h"
#include "dispatch/verdict.h"

namespace hgemm {
namespace {

/// The decision where a kernel or torch is named: it, or a refusal where it must not or cannot run the problem.
Decision forced_decision(const Problem& p, const DeviceFacts& facts, int forced) {
  const bool possible = forced == kTorch ? !must_be_ours(p) : can_run(variant(forced), p, facts, nullptr);
  return {.variant = possible ? forced : kRefused, .source = Source::kForced, .us = NAN, .torch_us = NAN};
}

}  // namespace

Decision select(const Problem& p, const DeviceFacts& facts, int forced) {
  if (forced != kAuto) return forced_decision(p, facts, forced);
  if (p.empty()) return {};
  const Question question(p, facts);
  Contenders contenders;
  find_contenders(question, &contenders);
  Estimates estimates;
  estimate(question, contenders, /*for_explanation=*/false, &estimates);
  const double margin = margin_of(question, contenders, estimates);
  return verdict_on(question, contenders, estimates, margin);
}

const char* source_name(Source source) {
  static constexpr const char* kNames[] = {"forced", "table", "model", "fallback"};
  return kNames[static_cast<int>(source)];
}

}  // namespace hgemm
