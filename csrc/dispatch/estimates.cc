#include "dispatch/estimates.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/ceil_div.h"
#include "core/cost.h"
#include "dispatch/margin.h"
#include "dispatch/models/learned.h"
#include "dispatch/models/torch_model.h"

namespace hgemm {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

// How much faster than torch the learned model has to predict a kernel to be: kLearnedMargin times the factor by which
// the model tends to be off at such shapes, to the power of Learned::doubted (benchmarks/fit_model.py --check).
constexpr double kLearnedMargin = 1.02;

// The same for int8 products, which have an analytic model alone. They have no epilogue, and torch has few kernels.
constexpr double kInt8Margin = 1.02;

// The learned model's margin is at least this for products unlike those that it was fitted to, where it takes torch for
// too slow. On an H200 torch took 0.85 of its prediction at 8x223x2048x2048 with a shared B, 0.84 at 777x3584x18944 and
// 0.90 at 1x4096x65536.
constexpr double kUnfittedMargin = 1.2, kLongerKMargin = 1.1;
constexpr int64_t kMostFittedK = 16000, kMostFittedVectorK = 32768, kFewRows = 64;
// The same where a batch of exchanged rows shares a B that L2 does not hold. Each matrix then reads B from memory,
// which no model knows: 64x27x8192x16384 took 5.4 ms, and torch 4.0, where 1.8 was predicted.
constexpr double kReadAgainMargin = 3;
// The same for rows that fill tiles of our kernels badly, where C has many columns, since torch has tiles of more
// sizes. On an H200 kernels that were predicted to be 1.06 and 1.05 times as fast as torch had 0.98 of its speed at
// 712x32000x5120 and 1.00 at 904x256000x3584, and 712x256000x4096 ran at 0.97.
constexpr double kBadFitMargin = 1.07, kBadFit = 1.06;
constexpr int64_t kLeastBadRows = 256, kMostBadRows = 1024, kManyColumns = 32000;
// The margins of kernels that compute rows of several matrices in one tile (Contender::merges) are at least these, and
// not kUnfittedMargin or kReadAgainMargin. They are predicted as kernels of the product of all rows by the shared B, to
// which the learned model was fitted, and read B as often as these. What the margins allow for is torch's time. On an
// H200, with more than kFewMergedRows rows a matrix, torch took 0.66 to 1.01 of its prediction: of 36 such batches 26
// were slower by these kernels, though predicted to be up to 1.48 times as fast, and none was more than 1.15 times as
// fast. With fewer rows 19 of 22 were 1.04 to 4.2 times as fast. The others ran at 0.88 (predicted: 1.00), at 0.89
// (1.37; 32x73x1024x4096) and at 0.99 of torch's speed.
constexpr double kMergedMargin = 1.15, kManyMergedRowsMargin = 1.4;
constexpr int64_t kFewMergedRows = 128;

// A shared B is read once for each matrix of the batch, except by kernels that merge rows. On an H200 the kernels for
// few rows, whose predictions do not know this, read it at 3.4 to 7.1 TB/s: 8x10x4096x14336 took 220 us, where 29 would
// be enough to read B once.
constexpr double kSharedReadGBs = 6500, kKeptBytes = 128 << 10;  // the rate is that of 132 SMs

size_t torch_slot() {
  return static_cast<size_t>(variant_count());
}

/// The rows of the tiles that cover so many rows, over these.
double fit_of(int64_t rows) {
  constexpr int64_t kTileRows[] = {128, 192, 200};
  int64_t covered = std::numeric_limits<int64_t>::max();
  for (const int64_t tile : kTileRows) covered = std::min(covered, ceil_div(rows, tile) * tile);
  return static_cast<double>(covered) / static_cast<double>(rows);
}

/// Whether the learned model was fitted to times of this kernel's family. Of the kernels that are chosen for
/// batch-invariant numerics alone it has no times. It corrects those that resemble other kernels, but neither the
/// kernels of sm90_skinny that take several tiles of rows nor those that add up four slices.
bool is_learned(const Question& question, const Contender& contender) {
  const Variant& v = variant(contender.id);
  if (contender.merges) return false;  // correct_merged()
  if (v.only_invariant && (v.family == Family::kSm90Skinny || v.sums == Sums::kFourSlices)) return false;
  return is_learned(v.family, forest_kind(question.product));
}

/// How much faster than torch a kernel has to be at least, by the learned model: more where that was fitted to no such
/// products.
double least_margin(const Problem& p, const DeviceFacts& facts) {
  const int64_t fewer = std::min(p.m, p.n);
  if (p.batches() > 1) {
    const double b_bytes = static_cast<double>(p.n) * static_cast<double>(p.k) * dtype_bytes(p.dtype);
    if (p.rows_are_batch) return b_bytes > static_cast<double>(facts.l2_bytes) ? kReadAgainMargin : 1.0;
    return shares_operand(p) ? kUnfittedMargin : 1.0;
  }
  if (fewer == 1) return p.k > kMostFittedVectorK ? kUnfittedMargin : 1.0;
  const bool fits_badly =
      p.is_half() && p.m > kLeastBadRows && p.m < kMostBadRows && p.n >= kManyColumns && fit_of(p.m) > kBadFit;
  return std::max(fewer > kFewRows && p.k > kMostFittedK ? kLongerKMargin : 1.0, fits_badly ? kBadFitMargin : 1.0);
}

/// The least time in us of a kernel that reads a shared B for each matrix of the batch; 0 where B is not shared, where
/// it is so small that a block keeps it, and with more than kFewRows rows a matrix, whose predictions know the reads.
double shared_reads_us(const Problem& p, const DeviceFacts& facts) {
  const double b_bytes = static_cast<double>(p.n) * static_cast<double>(p.k) * dtype_bytes(p.dtype);
  if (p.batch[1] == 1 || p.b.batch_stride[1] != 0 || p.m > kFewRows || b_bytes <= kKeptBytes) return 0.0;
  return static_cast<double>(p.batches()) * b_bytes / (kSharedReadGBs * 1e3 * facts.sm_count / 132);
}

/// What the table has for the shape, as far as the decision may use it.
Knowledge usable_knowledge(const Question& question, const Contenders& contenders, bool nearby, double* scratch) {
  const Knowledge known = table_lookup(question.problem, question.facts, question.alignments, scratch, nearby);
  if (known.kind == Knowledge::Kind::kNothing) return known;
  // Without torch's time there is nothing to compare with.
  if (std::isnan(known.value[torch_slot()])) return {};
  // Where a mode allows only some kernels, the table counts only if it has a time of one of them, measured as the
  // kernel would now run.
  const bool splits = std::any_of(contenders.begin(), contenders.end(), splits_float32);
  if (!question.is_batch_invariant() && !splits) return known;
  const bool any_timed = std::any_of(contenders.begin(), contenders.end(), [&](const Contender& c) {
    return c.runs_as_timed && (!splits || splits_float32(c)) && !std::isnan(known.value[static_cast<size_t>(c.id)]);
  });
  return any_timed ? known : Knowledge{};
}

/// Predicted microseconds of the matmul without its epilogue.
struct Predictions {
  double ours[kMaxVariants];  // in the order of the contenders; NaN: not considered
  double torch;
};

/// The contenders whose predictions the learned model corrects: their places among all.
struct Corrected {
  Corrected(const Question& question, const Contenders& contenders) {
    for (int i = 0; i < contenders.count; ++i) {
      if (!is_learned(question, contenders.all[i])) continue;
      place[count++] = i;
      any_strict = any_strict || !splits_float32(contenders.all[i]);
    }
  }

  const int* begin() const { return place; }
  const int* end() const { return place + count; }

  int count = 0;
  bool any_strict = false;  // that computes what torch does
  int place[kMaxVariants];
};

/// How a kernel's predicted time compares with its time for an ordinary product of the same shape.
struct Share {
  double of_ordinary_us = 1.0;
  bool computes_ordinary = true;  // some kernels compute x @ x.T alone
};

/// x @ x.T, of which some kernels compute one triangle. The learned model was fitted to ordinary products. So it
/// corrects the time that a kernel would take for one, and `shares` takes how much of that time the kernel is predicted
/// to need.
void take_shares(const Question& question, const Contenders& contenders, const Corrected& corrected, double* us,
                 Share* shares) {
  if (!question.product.b_is_a_transposed) return;
  Problem ordinary = question.product;
  ordinary.b_is_a_transposed = false;
  for (const int i : corrected) {
    const Variant& v = variant(contenders.all[i].id);
    const double all = v.predict_us(ordinary, question.facts);
    shares[i] = {us[i] / all, v.eligible(ordinary, question.facts, nullptr)};
    us[i] = all;
  }
}

/// The least time of all kernels, and of those that do not split float32.
struct Best {
  double all = kInfinity, strict = kInfinity;

  void add(const Contender& contender, double us) {
    all = std::min(all, us);
    if (!splits_float32(contender)) strict = std::min(strict, us);
  }
};

/// Corrects the analytic predictions `us` by the learned model, of the kernels that it knows, several at once. A kernel
/// that is predicted to be too slow to have been measured for the model becomes NaN. Strict kernels are measured where
/// none splits float32, too, and so compete with each other alone. `shape`: its features. Returns the least corrected
/// times of an ordinary product of the same shape.
Best correct_kernels(const Learned& learned, const Question& question, const Contenders& contenders,
                     const Corrected& corrected, const float* shape, double* us) {
  Share shares[kMaxVariants];
  take_shares(question, contenders, corrected, us, shares);
  Best fastest, best;
  for (const int i : corrected) fastest.add(contenders.all[i], us[i]);
  const double most_us = learned_reach(fastest.all) * fastest.all;
  const double most_strict_us = learned_reach(fastest.strict) * fastest.strict;
  const Variant* kernels[kRows];
  double predicted[kRows];
  int of_row[kRows];
  int row = 0;
  const auto correct_rows = [&](const Forest& forest) {
    Rows rows;
    double corrections[kRows];
    kernel_features(kernels, predicted, row, question.product, question.facts, shape, &rows);
    factors(forest, shape, rows, row, corrections);
    for (int i = 0; i < row; ++i) {
      const Share& share = shares[of_row[i]];
      const double ordinary_us = predicted[i] * corrections[i];
      if (share.computes_ordinary) best.add(contenders.all[of_row[i]], ordinary_us);
      us[of_row[i]] = ordinary_us * share.of_ordinary_us;
    }
    row = 0;
  };
  const auto correct = [&](const Forest& forest, bool splits, double reach_us) {
    for (const int i : corrected) {
      if (splits_float32(contenders.all[i]) != splits) continue;
      if (us[i] > reach_us) {
        us[i] = kNaN;
        continue;
      }
      kernels[row] = &variant(contenders.all[i].id);
      predicted[row] = us[i];
      of_row[row++] = i;
      if (row == kRows) correct_rows(forest);
    }
    if (row > 0) correct_rows(forest);
  };
  correct(learned.kernels, false, most_strict_us);
  if (learned.planes.trees > 0) correct(learned.planes, true, most_us);
  return best;
}

/// The product of all rows of the inner batch dimension by their B.
Problem merged_product(const Problem& product) {
  Problem merged = product;
  merged.m *= product.batch[1];
  merged.batch[0] = 1;
  merged.batch[1] = product.batch[0];
  for (Matrix* x : {&merged.a, &merged.b, &merged.d}) {
    x->batch_stride[1] = x->batch_stride[0];
    x->batch_stride[0] = 0;
  }
  merged.d.row_stride = product.n;
  merged.rows_are_batch = false;
  return merged;
}

/// Corrects the predictions of the kernels that merge rows, as those of kernels of the merged product.
void correct_merged(const Question& question, const Contenders& contenders, double* us) {
  const Variant* kernels[kRows];
  double predicted[kRows], corrections[kRows];
  int of_row[kRows], count = 0;
  for (int i = 0; i < contenders.count && count < kRows; ++i) {
    if (!contenders.all[i].merges) continue;
    kernels[count] = &variant(contenders.all[i].id);
    predicted[count] = us[i];
    of_row[count++] = i;
  }
  if (count == 0) return;
  const Problem product = merged_product(question.product);
  const Learned* const learned_here = learned(question.facts, forest_kind(product));
  if (learned_here == nullptr) return;
  float shape[kShapeFeatures];
  shape_features(product, question.alignments, shape);
  Rows rows;
  kernel_features(kernels, predicted, count, product, question.facts, shape, &rows);
  factors(learned_here->kernels, shape, rows, count, corrections);
  for (int i = 0; i < count; ++i) us[of_row[i]] *= corrections[i];
}

/// Corrects all predictions by the learned model of this chip, and writes the features of its forest `doubt`.
/// Returns false where the analytic margin applies: the model knows none of the contenders, or none that computes what
/// torch does, beside which it was fitted. Predictions are then as they were, unless those kernels compute one triangle
/// alone.
bool apply_learned(const Learned& learned, const Question& question, const Contenders& contenders,
                   Predictions* predictions, float* features) {
  const Corrected corrected(question, contenders);
  if (!corrected.any_strict) return false;
  shape_features(question.product, question.alignments, features);
  const Best best = correct_kernels(learned, question, contenders, corrected, features, predictions->ours);
  correct_merged(question, contenders, predictions->ours);
  if (!std::isfinite(best.strict)) return false;
  // What the problem's epilogue reads and writes counts in predictions->torch.
  const bool is_product = question.problem.c.data == nullptr && question.problem.pre_activation == nullptr;
  const double torch_us =
      is_product ? predictions->torch : torch_product_us(question.product, question.facts, question.alignments);
  torch_features(question.product, question.facts, torch_us, best.strict, features);
  const double correction = factor(learned.torch, features);
  predictions->torch *= correction;
  features[kTorchFeatures] = static_cast<float>(std::log2(torch_us * correction / best.all));
  return true;
}

/// How much faster than torch a kernel has to be by the learned model: one of those that merge rows, and any other.
struct Margins {
  double merged, others;
};

/// The learned model's margins over torch, where its predictions tend to be off by a factor `doubt`.
Margins learned_margins(const Learned& learned, const Question& question, double doubt) {
  const Problem& p = question.problem;
  const double margin = std::max(kLearnedMargin * std::pow(std::max(1.0, doubt), learned.doubted), epilogue_margin(p));
  // With exchanged rows torch has few rows a matrix.
  const bool has_many = p.m > kFewMergedRows && !p.rows_are_batch;
  return {.merged = std::max(margin, has_many ? kManyMergedRowsMargin : kMergedMargin),
          .others = std::max(margin, least_margin(p, question.facts))};
}

/// Whether some contender beats torch by more than a margin.
bool beats_torch(const Contenders& contenders, const Estimates& estimates, double margin) {
  return std::any_of(estimates.ours, estimates.ours + contenders.count,
                     [&](const Times& ours) { return ours.used * margin < estimates.torch.used; });
}

bool any_merges(const Contenders& contenders) {
  return std::any_of(contenders.begin(), contenders.end(), [](const Contender& c) { return c.merges; });
}

/// If none of the other kernels is faster than torch by its margin, sets the margin of those that merge rows. The times
/// of the others are then taken for too short, by as much as their margin is larger.
void compare_merged(const Contenders& contenders, const Margins& margins, Estimates* out) {
  for (int i = 0; i < contenders.count; ++i) {
    if (!contenders.all[i].merges && out->ours[i].used * margins.others < out->torch.used) return;
  }
  out->model_margin = margins.merged;
  for (int i = 0; i < contenders.count; ++i) {
    if (!contenders.all[i].merges) out->ours[i].used *= std::max(1.0, margins.others / margins.merged);
  }
}

/// Writes the times of one candidate. `product_us`: the matmul alone by the best model that there is; NaN where that
/// model gives no answer. `slot`: the candidate's place in known.value. NOTE: they are not returned, because to copy
/// what was just written in smaller parts stalls a CPU, here once for each kernel.
void set_times(double product_us, double epilogue_us, const Knowledge& known, size_t slot, Times* out) {
  out->predicted = product_us + epilogue_us;
  out->measured = kNaN;
  switch (known.kind) {
    case Knowledge::Kind::kNothing: out->used = out->predicted; break;
    case Knowledge::Kind::kExact:
      out->measured = known.value[slot];
      out->used = out->measured + epilogue_us;
      break;
    // A kernel without a measured time nearby has the value NaN, so that it does not compete by an uncorrected
    // prediction.
    case Knowledge::Kind::kNearby: out->used = product_us * known.value[slot] + epilogue_us; break;
  }
}

}  // namespace

void estimate(const Question& question, const Contenders& contenders, bool for_explanation, Estimates* out) {
  const Learned* const learned_here = learned(question.facts, forest_kind(question.problem));
  const bool nearby = learned_here == nullptr && !is_tiny_batch(question.product);
  if (question.problem.dtype == DType::kI8) out->model_margin = kInt8Margin;
  out->known = usable_knowledge(question, contenders, nearby, out->table_values);

  Predictions predictions;
  for (int i = 0; i < contenders.count; ++i) predictions.ours[i] = contenders.all[i].product_us;
  predictions.torch = torch_product_us(question.problem, question.facts, question.alignments);
  // Where the shape is measured, predictions are only needed for kernels whose measured times do not apply, because of
  // a mode or because they compute one triangle.
  const bool all_measured = out->is_measured() && !question.is_batch_invariant() && !question.product.b_is_a_transposed;
  float features[kDoubtFeatures];
  bool is_doubted = false;
  if (learned_here && (!all_measured || for_explanation)) {
    is_doubted = apply_learned(*learned_here, question, contenders, &predictions, features);
    if (is_doubted) out->model_margin = learned_margins(*learned_here, question, 1.0).others;
  }

  if (const double least_us = shared_reads_us(question.product, question.facts); least_us > 0.0) {
    for (int i = 0; i < contenders.count; ++i) {
      if (!contenders.all[i].merges) predictions.ours[i] = std::max(predictions.ours[i], least_us);
    }
  }

  // Torch computes more and smaller matrices, of which no table and no learned model has a time.
  const bool torch_differs = question.problem.rows_are_batch;
  if (torch_differs) {
    predictions.torch = torch_product_us(as_called(question.problem), question.facts, question.alignments);
  }

  const double torch_epilogue = torch_epilogue_us(question.problem, question.facts);
  const Knowledge nothing;
  set_times(predictions.torch, torch_epilogue, torch_differs ? nothing : out->known, torch_slot(), &out->torch);
  for (int i = 0; i < contenders.count; ++i) {
    const Contender& c = contenders.all[i];
    const Knowledge& known = c.runs_as_timed ? out->known : nothing;
    set_times(predictions.ours[i], c.epilogue_us, known, static_cast<size_t>(c.id), &out->ours[i]);
  }

  // Where torch is no choice, the kernels are compared with each other alone. Doubt only raises the margin. Where no
  // kernel beats torch by the margin without doubt, torch is chosen in any case, and the trees of the doubt are not
  // evaluated.
  if (!is_doubted || out->is_measured() || question.is_batch_invariant()) return;
  const bool merges = any_merges(contenders);
  if (!merges && !beats_torch(contenders, *out, out->model_margin)) return;
  const Margins margins = learned_margins(*learned_here, question, factor(learned_here->doubt, features));
  out->model_margin = margins.others;
  if (merges) compare_merged(contenders, margins, out);
}

}  // namespace hgemm
