#include "dispatch/select.h"

#include <algorithm>
#include <cinttypes>
#include <cmath>
#include <limits>

#include "core/chip.h"
#include "dispatch/devices.h"
#include "dispatch/format.h"
#include "dispatch/invariance.h"
#include "dispatch/learned.h"
#include "dispatch/table.h"
#include "dispatch/torch_model.h"

namespace hgemm {
namespace {

// How much faster than torch a kernel has to be. Measured ratios are medians of paired rounds and repeat within 1 %;
// the models are off by 5 to 7 % on average, and a wrong choice of ours is worse than a missed one.
constexpr double kMeasuredMargin = 1.01;
// Of a learned prediction: times what it tends to be off by at such shapes, to this power (fit_model.py --check).
constexpr double kLearnedMargin = 1.02;
constexpr double kLearnedDoubt = 0.4;
constexpr double kModelMargin = 1.05;
// Of float32="split" on a chip that nobody measured: tensor cores by datasheet are so far ahead of CUDA cores (A100),
// or not (A10, L40S).
constexpr double kUnmeasuredSplitMargin = 1.25;
// With an activation or a C two more models are in play, of which nothing is in the table, unless a few rows make it
// short. A bias costs torch and us alike: the same ratios with and without at 25 shapes of GPT-2, BERT, ViT and Qwen2.
constexpr double kFusedMeasuredMargin = 1.04;
constexpr double kFusedModelMargin = 1.10;
constexpr int64_t kFewRows = 64;  // or columns, not both
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

void append(std::string* reasons, const std::string& reason) {
  if (!reasons->empty()) *reasons += "; ";
  *reasons += reason;
}

bool runs_on(const Variant& v, const Problem& p, const DeviceFacts& facts) {
  return v.min_cc <= facts.cc && facts.cc <= v.max_cc && is_built_for(facts.cc) &&
         (v.dtypes >> static_cast<int>(p.dtype) & 1u) != 0 && v.smem_bytes <= facts.smem_optin &&
         keeps_promise(v, p, facts);
}

std::string dtype_list(uint32_t dtypes) {
  std::string names;
  for (DType t : {DType::kF16, DType::kBF16, DType::kF32}) {
    if (dtypes >> static_cast<int>(t) & 1u) names += (names.empty() ? "" : ", ") + std::string(dtype_name(t));
  }
  return names;
}

/// Times of one candidate: what the decision uses, and where it came from.
struct Times {
  double predicted;  // by the models alone
  double measured;   // NaN where not
  double used;       // NaN: not to be considered
};

/// `modelled`: the product by the best model there is, NaN where that says nothing. `extra`: the epilogue.
Times times_of(double modelled, double extra, const Knowledge& known, size_t slot) {
  const bool exact = known.kind == Knowledge::Kind::kExact, nearby = known.kind == Knowledge::Kind::kNearby;
  const double value = exact || nearby ? known.value[slot] : kNaN;
  if (exact) return {modelled + extra, value, value + extra};
  // A kernel that nobody measured nearby does not compete on an uncorrected prediction.
  return {modelled + extra, kNaN, (nearby ? modelled * value : modelled) + extra};
}

struct Choice {
  Decision decision;
  Knowledge known;
  double margin = 1.0;           // how much faster than torch a kernel had to be
  bool unmeasured_chip = false;  // torch was preferred because nobody measured this chip
};

/// One kernel that can serve a problem.
struct Contender {
  int id;
  double alone, extra;  // predicted: the product, and what its epilogue adds
  bool is_in_tables;    // runs as when it was timed: with as many slices of K
};

/// The kernels that can serve a problem, with their analytic predictions; `out` has kMaxVariants places.
int contenders_of(const Problem& p, const DeviceFacts& facts, Contender* out) {
  const bool fused = p.act != Activation::kNone || p.bias || p.pre_activation || p.c.data;
  const Problem product = product_of(p);
  Problem timed = product;
  timed.numerics = NumericsMode::kFast;
  int count = 0;
  for (int id : automatic_variants()) {
    const Variant& v = variant(id);
    if (!may_be_chosen(v, p) || !runs_on(v, p, facts) || !v.eligible(p, facts, nullptr)) continue;
    const double alone = v.predict_us(product, facts);
    out[count++] = {id, alone, fused ? std::max(0.0, v.predict_us(p, facts) - alone) : 0.0,
                    p.numerics == NumericsMode::kFast || v.predict_us(timed, facts) == alone};
  }
  return count;
}

/// What was learned of torch beside our kernels.
struct Torchs {
  double us;
  double margin;  // how much faster than that a kernel has to be predicted
};

/// Corrects the predictions by what was learned on this chip; those of kernels too slow to have been measured become
/// NaN.
Torchs apply_learned(const Learned& learned, const Problem& p, const DeviceFacts& facts, Contender* contenders,
                     int count, double torch_us) {
  const Problem product = product_of(p);
  float features[std::max(kKernelFeatures, kDoubtFeatures)];
  shape_features(product, features);
  double fastest = std::numeric_limits<double>::infinity(), best = fastest;
  for (int i = 0; i < count; ++i) fastest = std::min(fastest, contenders[i].alone);
  Rows rows{};
  double* of_row[kRows];
  int row = 0;
  const auto correct = [&] {
    double corrections[kRows];
    factors(learned.kernels, rows, row, corrections);
    for (int i = 0; i < row; ++i) best = std::min(best, *of_row[i] *= corrections[i]);
    row = 0;
  };
  for (int i = 0; i < count; ++i) {
    double& us = contenders[i].alone;
    if (us > learned_reach(fastest) * fastest) {
      us = kNaN;
      continue;
    }
    kernel_features(variant(contenders[i].id), product, facts, us, features);
    for (int f = 0; f < kKernelFeatures; ++f) rows.answer[f][row] = features[f];
    of_row[row++] = &us;
    if (row == kRows) correct();
  }
  correct();
  if (count == 0) return {torch_us, kModelMargin};
  const double torch_alone = torch_product_us(product, facts);
  torch_features(product, facts, torch_alone, best, features);
  const double correction = factor(learned.torch, features);
  features[kTorchFeatures] = static_cast<float>(std::log2(torch_alone * correction / best));
  const double doubt = std::max(1.0, factor(learned.doubt, features));
  return {torch_us * correction, kLearnedMargin * std::pow(doubt, kLearnedDoubt)};
}

template <class Visit>
Choice choose_among(const Problem& p, const DeviceFacts& facts, double* scratch, const Visit& visit) {
  Choice choice;
  const Learned* learned_here = learned(facts, p.dtype);
  choice.known = table_lookup(p, facts, scratch, learned_here == nullptr);
  const size_t torch_slot = static_cast<size_t>(variant_count());
  if (choice.known.kind != Knowledge::Kind::kNothing && std::isnan(choice.known.value[torch_slot])) {
    choice.known = {};  // without torch's time there is nothing to compare with
  }
  Contender contenders[kMaxVariants];
  const int count = contenders_of(p, facts, contenders);
  const bool invariant = p.numerics != NumericsMode::kFast;
  const auto splits = [](const Contender& c) { return variant(c.id).numerics == Numerics::kSplitF32; };
  const bool split = std::any_of(contenders, contenders + count, splits);
  if ((invariant || split) && choice.known.kind != Knowledge::Kind::kNothing &&
      std::none_of(contenders, contenders + count, [&](const Contender& c) {
        return c.is_in_tables && (!split || splits(c)) && !std::isnan(choice.known.value[static_cast<size_t>(c.id)]);
      })) {
    choice.known = {};  // of those that it may be by what is asked for, nobody timed one
  }
  Torchs torchs{torch_product_us(p, facts), kModelMargin};
  const bool exact = choice.known.kind == Knowledge::Kind::kExact;
  if (learned_here && (!exact || invariant || Visit::kExplains)) {
    torchs = apply_learned(*learned_here, p, facts, contenders, count, torchs.us);
  }
  const Times torch = times_of(torchs.us, torch_epilogue_us(p, facts), choice.known, torch_slot);
  visit(kTorch, torch);
  int best = kTorch;
  double best_us = std::numeric_limits<double>::infinity();
  for (const Contender* c = contenders; c < contenders + count; ++c) {
    const Knowledge& known = c->is_in_tables ? choice.known : Knowledge{};
    const Times t = times_of(c->alone, c->extra, known, static_cast<size_t>(c->id));
    visit(c->id, t);
    if (t.used < best_us) best_us = t.used, best = c->id;
  }
  const bool any = count > 0;
  const bool is_known = choice.known.kind != Knowledge::Kind::kNothing || is_measured(facts.cc);
  const bool comparable = is_known || split || !is_aligned(p);
  const bool is_short = std::min(p.m, p.n) <= kFewRows && std::max(p.m, p.n) > kFewRows;
  const bool has_epilogue = p.act != Activation::kNone || p.pre_activation || p.c.data;
  if (has_epilogue && !is_short) {
    choice.margin = exact ? kFusedMeasuredMargin : std::max(kFusedModelMargin, torchs.margin);
  } else if (exact) {
    choice.margin = kMeasuredMargin;
  } else {
    choice.margin = torchs.margin;
  }
  if (split && !is_known) choice.margin = std::max(choice.margin, kUnmeasuredSplitMargin);
  const bool ours = best != kTorch && (invariant || (comparable && best_us * choice.margin < torch.used));
  choice.unmeasured_chip = any && !comparable && !invariant;
  choice.decision.variant = ours ? best : must_be_ours(p) ? kRefused : kTorch;
  choice.decision.source = !any ? Source::kFallback : exact ? Source::kTable : Source::kModel;
  choice.decision.us = static_cast<float>(ours ? best_us : torch.used);
  choice.decision.torch_us = static_cast<float>(torch.used);
  return choice;
}

/// Nobody looks at the candidates.
struct Unseen {
  static constexpr bool kExplains = false;
  void operator()(int, const Times&) const {}
};

/// Notes down the candidates' times, by id.
struct Seen {
  static constexpr bool kExplains = true;
  std::vector<Candidate>& candidates;
  void operator()(int id, const Times& t) const {
    Candidate& c = id == kTorch ? candidates.back() : candidates[static_cast<size_t>(id)];
    c.predicted_us = t.predicted;
    c.measured_us = t.measured;
  }
};

Decision forced_decision(const Problem& p, const DeviceFacts& facts, int forced) {
  Decision d{forced, Source::kForced, NAN, NAN};
  if (forced == kTorch ? must_be_ours(p) : !serves(variant(forced), p, facts, nullptr)) d.variant = kRefused;
  return d;
}

}  // namespace

bool serves(const Variant& v, const Problem& p, const DeviceFacts& facts, std::string* why) {
  if (runs_on(v, p, facts) && v.eligible(p, facts, nullptr)) return true;
  if (!why) return false;
  if (facts.cc < v.min_cc) append(why, format("needs sm_%d or newer, this is sm_%d", v.min_cc, facts.cc));
  if (facts.cc > v.max_cc) append(why, format("runs up to sm_%d, this is sm_%d", v.max_cc, facts.cc));
  if (!is_built_for(facts.cc)) append(why, format("built for %s, this is sm_%d", built_archs(), facts.cc));
  if ((v.dtypes >> static_cast<int>(p.dtype) & 1u) == 0) {
    append(why, format("takes %s, not %s", dtype_list(v.dtypes).c_str(), dtype_name(p.dtype)));
  }
  if (v.smem_bytes > facts.smem_optin) {
    append(why, format("needs %d bytes of shared memory, a block has at most %d", v.smem_bytes, facts.smem_optin));
  }
  if (!keeps_promise(v, p, facts)) append(why, "its bits vary with the batch, or from the kernels that do not");
  Reason reason;
  if (!v.eligible(p, facts, &reason)) append(why, reason.text[0] ? reason.text : "refused by its own check");
  return false;
}

Problem product_of(const Problem& p) {
  Problem product = p;
  product.act = Activation::kNone;
  product.bias = nullptr;
  product.pre_activation = nullptr;
  product.c = {};
  product.beta = 0.0f;
  return product;
}

Decision select(const Problem& p, const DeviceFacts& facts, int forced) {
  if (forced != kAuto) return forced_decision(p, facts, forced);
  if (p.empty()) return {};
  double scratch[kMaxVariants + 1];
  return choose_among(p, facts, scratch, Unseen{}).decision;
}

Explanation explain(const Problem& p, const DeviceFacts& facts, int forced) {
  const int torch_slot = variant_count();
  Explanation out;
  const bool leaves_to_tf32 = p.float32 == Float32Mode::kTf32;
  bool unasked = false;  // for a kernel that could serve it
  for (int id = 0; id <= torch_slot; ++id) {
    Candidate c{id == torch_slot ? kTorch : id, true, kNaN, kNaN, ""};
    if (id < torch_slot) c.eligible = serves(variant(id), p, facts, &c.reason);
    if (id < torch_slot && id != forced && p.dtype == DType::kF32 && !may_be_chosen(variant(id), p)) {
      unasked = unasked || c.eligible;
      c.eligible = false;
      append(&c.reason, leaves_to_tf32 ? "torch may use TF32" : "float32=\"split\" was not asked for");
    }
    if (id == torch_slot && must_be_ours(p)) c.eligible = false, c.reason = "its bits may vary with the batch";
    out.candidates.push_back(std::move(c));
  }
  double scratch[kMaxVariants + 1];
  Choice automatic;
  if (!p.empty()) {
    automatic = choose_among(p, facts, scratch, Seen{out.candidates});
    for (Candidate& c : out.candidates) {  // kernels that the choice is not among
      if (c.eligible && std::isnan(c.predicted_us)) c.predicted_us = variant(c.variant).predict_us(p, facts);
    }
  }
  if (forced != kAuto) {
    out.decision = forced_decision(p, facts, forced);
    out.reason =
        out.decision.variant == kRefused ? refusal(p, facts, forced) : format("%s was asked for", variant_name(forced));
    return out;
  }
  const Decision& d = out.decision = automatic.decision;
  if (p.empty()) {
    out.reason = "nothing to multiply: no kernel runs";
  } else if (d.variant == kRefused) {
    out.reason = refusal(p, facts, forced);
  } else if (d.source == Source::kFallback) {
    out.reason = format("%sno kernel of ours serves %s on sm_%d%s",
                        p.numerics == NumericsMode::kFast ? "" : "torch's, whose bits may vary with the batch: ",
                        describe(p).c_str(), facts.cc,
                        !unasked         ? ""
                        : leaves_to_tf32 ? " where torch may use TF32"
                                         : " without float32=\"split\"");
  } else if (automatic.unmeasured_chip) {
    out.reason =
        format("sm_%d is not measured: an aligned product is left to torch until `hgemm tune` or tune=True measures it",
               facts.cc);
  } else {
    const char* basis = d.source == Source::kTable ? "measured" : "predicted";
    if (d.variant == kTorch) {
      out.reason = format("no kernel of ours is %s to be %.3g %% faster than torch's %.1f us", basis,
                          100 * (automatic.margin - 1), d.torch_us);
    } else {
      out.reason = format("%s %.1f us against torch's %.1f us", basis, d.us, d.torch_us);
    }
    if (p.numerics != NumericsMode::kFast) out.reason += ", the fastest whose bits do not vary with the batch";
    if (automatic.known.kind == Knowledge::Kind::kNearby) {
      out.reason += format(" (model corrected by %d measured %s nearby)", automatic.known.neighbours,
                           automatic.known.neighbours == 1 ? "shape" : "shapes");
    }
    if (automatic.known.kind != Knowledge::Kind::kNothing && automatic.known.dtype != p.dtype) {
      out.reason += format(" (in %s)", dtype_name(automatic.known.dtype));
    }
  }
  return out;
}

std::string refusal(const Problem& p, const DeviceFacts& facts, int forced) {
  if (forced < 0) return unheld(p, forced == kAuto ? "no kernel of ours serves it" : "torch's bits may vary with it");
  std::string why, able;
  serves(variant(forced), p, facts, &why);
  for (int id = 0; id < variant_count(); ++id) {
    if (variant(id).family == Family::kAdded) continue;  // slower, and many
    if (serves(variant(id), p, facts, nullptr)) able += std::string(variant(id).name) + ", ";
  }
  return format("hgemm: variant %s cannot serve %s on sm_%d: %s. Able to: %s%s", variant_name(forced),
                describe(p).c_str(), facts.cc, why.c_str(), able.c_str(), must_be_ours(p) ? "auto" : "torch");
}

std::string describe(const Problem& p) {
  static constexpr const char* kActs[] = {"", " relu", " gelu", " gelu_tanh", " silu"};
  std::string text = format("%s %s ", dtype_name(p.dtype), layout_name(p));
  if (p.batches() != 1) text += format("%" PRId64 "x", p.batches());
  text += format("%" PRId64 "x%" PRId64 "x%" PRId64, p.m, p.n, p.k);
  if (!is_aligned(p)) text += format(" (%d-byte aligned)", least_alignment(p));
  if (p.c.data) text += " + C";
  if (p.bias) text += " + bias";
  text += kActs[static_cast<int>(p.act)];
  if (p.out_dtype != p.dtype) text += format(" -> %s", dtype_name(p.out_dtype));
  return text;
}

const char* layout_name(const Problem& p) {
  static constexpr const char* kNames[2][2] = {{"NT", "NN"}, {"TT", "TN"}};
  return kNames[static_cast<int>(p.a_major())][static_cast<int>(p.b_major())];
}

const char* source_name(Source source) {
  static constexpr const char* kNames[] = {"forced", "table", "model", "fallback"};
  return kNames[static_cast<int>(source)];
}

}  // namespace hgemm
