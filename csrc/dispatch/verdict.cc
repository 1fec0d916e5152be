#include "dispatch/verdict.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "dispatch/invariance.h"
#include "dispatch/margin.h"

namespace hgemm {
namespace {

/// The contender with the least time, and that time; kTorch and infinity where no contender is considered.
struct Fastest {
  int id = kTorch;
  double us = std::numeric_limits<double>::infinity();
  bool is_measured = false;
};

Fastest fastest_of(const Contenders& contenders, const Estimates& estimates) {
  Fastest fastest;
  for (int i = 0; i < contenders.count; ++i) {
    const double us = estimates.ours[i].used;
    if (us < fastest.us) fastest = {contenders.all[i].id, us, !std::isnan(estimates.ours[i].measured)};
  }
  return fastest;
}

Source source_of(const Contenders& contenders, const Estimates& estimates) {
  if (contenders.count == 0) return Source::kFallback;
  return estimates.is_measured() ? Source::kTable : Source::kModel;
}

/// The dtype that the table was measured in, where it is not the problem's; -1 otherwise.
int8_t other_dtype(const Problem& p, const Estimates& estimates) {
  if (!estimates.knows_anything() || estimates.known.dtype == p.dtype) return -1;
  return static_cast<int8_t>(estimates.known.dtype);
}

}  // namespace

Decision verdict_on(const Question& question, const Contenders& contenders, const Estimates& estimates, double margin) {
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

  Decision decision;
  decision.variant = ours ? fastest.id : must_be_ours(question.problem) ? kRefused : kTorch;
  decision.source = source_of(contenders, estimates);
  if (ours && decision.source == Source::kTable && !fastest.is_measured) decision.source = Source::kModel;
  decision.us = static_cast<float>(ours ? fastest.us : torch_us);
  decision.torch_us = static_cast<float>(torch_us);
  decision.margin = static_cast<float>(margin);
  if (estimates.known.kind == Knowledge::Kind::kNearby) {
    decision.neighbours = static_cast<int16_t>(std::min<int>(estimates.known.neighbours, INT16_MAX));
  }
  decision.measured_dtype = other_dtype(question.problem, estimates);
  if (decision.variant == kTorch && is_unasked(question.problem, question.facts)) decision.remark = Remark::kUnasked;
  if (contenders.count > 0 && !comparable && !invariant) decision.remark = Remark::kUnmeasuredChip;
  return decision;
}

}  // namespace hgemm
