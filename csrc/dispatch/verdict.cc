#include "dispatch/verdict.h"

#include <algorithm>
#include <limits>

#include "dispatch/invariance.h"
#include "dispatch/margin.h"

namespace hgemm {
namespace {

/// The contender with the least time, and that time; kTorch and infinity where no contender is considered.
struct Fastest {
  int id = kTorch;
  double us = std::numeric_limits<double>::infinity();
};

Fastest fastest_of(const Contenders& contenders, const Estimates& estimates) {
  Fastest fastest;
  for (int i = 0; i < contenders.count; ++i) {
    const double us = estimates.ours[i].used;
    if (us < fastest.us) fastest = {contenders.all[i].id, us};
  }
  return fastest;
}

Source source_of(const Contenders& contenders, const Estimates& estimates) {
  if (contenders.count == 0) return Source::kFallback;
  return estimates.is_measured() ? Source::kTable : Source::kModel;
}

}  // namespace

Verdict verdict_on(const Question& question, const Contenders& contenders, const Estimates& estimates, double margin) {
  const Fastest fastest = fastest_of(contenders, estimates);
  const double torch_us = estimates.torch.used;
  const bool invariant = question.is_batch_invariant();
  // On a chip without measured times, predictions for kernels and for torch are only compared where torch is known to
  // be slow: on unaligned operands, and in float32 against kernels on tensor cores.
  const bool comparable = knows_torch(question, estimates) ||
                          std::any_of(contenders.begin(), contenders.end(), splits_float32) ||
                          !question.alignments.all_whole();
  // A batch-invariant kernel runs however slow it is.
  const bool ours = fastest.id != kTorch && (invariant || (comparable && fastest.us * margin < torch_us));

  Verdict verdict;
  verdict.margin = margin;
  verdict.unmeasured_chip = contenders.count > 0 && !comparable && !invariant;
  verdict.decision.variant = ours ? fastest.id : must_be_ours(question.problem) ? kRefused : kTorch;
  verdict.decision.source = source_of(contenders, estimates);
  verdict.decision.us = static_cast<float>(ours ? fastest.us : torch_us);
  verdict.decision.torch_us = static_cast<float>(torch_us);
  return verdict;
}

}  // namespace hgemm
