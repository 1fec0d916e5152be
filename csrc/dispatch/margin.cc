#include "dispatch/margin.h"

#include <algorithm>

#include "core/chip.h"

namespace hgemm {
namespace {

// For measured times. Their ratios are medians of paired rounds, and repeat within 1 %.
constexpr double kMeasuredMargin = 1.01;
// For calls with an activation or a C. Their times depend on two more models, that of our epilogue and that of torch's
// extra passes, and tables have no times of either. With few rows or columns the epilogue is too short to matter. A
// bias needs no such margin, because it costs torch and us alike: ratios with and without a bias are the same at 25
// shapes of GPT-2, BERT, ViT and Qwen2.
constexpr double kFusedMeasuredMargin = 1.04;
constexpr double kFusedModelMargin = 1.10;
constexpr int64_t kFewRows = 64;  // or columns, but not both

/// Whether the result has few rows or few columns, but not both. The epilogue then takes next to no time.
bool is_short(const Problem& p) {
  return std::min(p.m, p.n) <= kFewRows && std::max(p.m, p.n) > kFewRows;
}

bool has_modelled_epilogue(const Problem& p) {
  return (p.act != Activation::kNone || p.pre_activation || p.c.data) && !is_short(p);
}

}  // namespace

double epilogue_margin(const Problem& p) {
  return has_modelled_epilogue(p) ? kFusedModelMargin : 1.0;
}

bool knows_torch(const Question& question, const Estimates& estimates) {
  return estimates.knows_anything() || is_measured(question.facts.cc);
}

double margin_of(const Question& question, const Contenders& contenders, const Estimates& estimates) {
  const Problem& p = question.problem;
  double margin = std::max(estimates.model_margin, epilogue_margin(p));
  if (estimates.is_measured()) margin = has_modelled_epilogue(p) ? kFusedMeasuredMargin : kMeasuredMargin;
  // By the datasheets, float32="split" is ahead of CUDA cores by kUnmeasuredMargin on some chips (A100), and not on
  // others (A10, L40S).
  const bool splits =
      !knows_torch(question, estimates) && std::any_of(contenders.begin(), contenders.end(), splits_float32);
  return splits ? std::max(margin, kUnmeasuredMargin) : margin;
}

}  // namespace hgemm
