#include "dispatch/contenders.h"

#include <algorithm>
#include <array>
#include <optional>
#include <vector>

#include "core/answers.h"
#include "core/format.h"
#include "dispatch/devices.h"
#include "dispatch/invariance.h"
#include "kernels/variants.h"

namespace hgemm {
namespace {

bool takes(const Variant& v, DType dtype) {
  return (v.dtypes >> static_cast<int>(dtype) & 1u) != 0;
}

/// The variants that may be chosen for problems of this dtype in these modes, whatever their sizes. Decisions read no
/// other variants, which are a third of all in float16.
const std::vector<int>& variants_for(const Problem& p) {
  constexpr int kDTypes = static_cast<int>(DType::kI32) + 1, kNumerics = 3, kFloat32 = 3;
  static const auto lists = [] {
    std::array<std::vector<int>, kDTypes * kNumerics * kFloat32> all;
    Problem asked;
    for (size_t i = 0; i < all.size(); ++i) {
      asked.dtype = static_cast<DType>(i / (kNumerics * kFloat32));
      asked.numerics = static_cast<NumericsMode>(i / kFloat32 % kNumerics);
      asked.float32 = static_cast<Float32Mode>(i % kFloat32);
      for (const int id : automatic_variants()) {
        if (takes(variant(id), asked.dtype) && may_be_chosen(variant(id), asked)) all[i].push_back(id);
      }
    }
    return all;
  }();
  const int modes = static_cast<int>(p.numerics) * kFloat32 + static_cast<int>(p.float32);
  return lists[static_cast<size_t>(static_cast<int>(p.dtype) * kNumerics * kFloat32 + modes)];
}

/// The number of blocks in a variant's cluster, which run on different SMs.
int cluster_of(const Variant& v) {
  return v.cut.cluster_m * v.cut.cluster_n * v.cut.slices;
}

/// Whether a variant that takes the problem's dtype meets all conditions except its own predicate, Variant::eligible,
/// on a device that this build has code for.
inline bool fits_device_and_modes(const Variant& v, const Problem& p, const DeviceFacts& facts) {
  return v.min_cc <= facts.cc && facts.cc <= v.max_cc && v.smem_bytes <= facts.smem_optin &&
         cluster_of(v) <= std::max(1, facts.sm_count) && keeps_promise(v, p, facts);
}

/// Whether a variant that is eligible keeps to a limit of less than kMostWorkspace. All variants keep to kMostWorkspace
/// (tests/dispatch/steps.cc), which saves the question in every other call.
bool fits_workspace(const Variant& v, const Problem& p, const DeviceFacts& facts) {
  return p.most_workspace >= kMostWorkspace || static_cast<int64_t>(v.workspace(p, facts)) <= p.most_workspace;
}

/// The answers of variants about one problem.
class Answers {
 public:
  Answers(const Problem& problem, const DeviceFacts& facts) : problem_(problem), facts_(facts) {
    if (problem.is_half()) kSm90WgmmaAnswers.prepare(problem, facts, common_);  // the family takes no other dtypes
  }

  bool eligible(const Variant& v) const {
    return v.family == Family::kSm90Wgmma ? kSm90WgmmaAnswers.eligible(common_, index_of(v))
                                          : v.eligible(problem_, facts_, nullptr);
  }

  static bool merges(const Variant& v) {
    return v.family == Family::kSm90Wgmma && kSm90WgmmaAnswers.merges(index_of(v));
  }

  double predict_us(const Variant& v) const {
    return v.family == Family::kSm90Wgmma ? kSm90WgmmaAnswers.predict_us(common_, index_of(v))
                                          : v.predict_us(problem_, facts_);
  }

 private:
  static int index_of(const Variant& v) { return static_cast<int>(&v - kSm90WgmmaVariants.variants); }

  const Problem& problem_;
  const DeviceFacts& facts_;
  alignas(16) unsigned char common_[FamilyAnswers::kCommonBytes];
};

std::string dtype_list(const Variant& v) {
  std::string names;
  for (int32_t code = 0; code <= static_cast<int32_t>(DType::kI32); ++code) {
    const DType t = static_cast<DType>(code);
    if (takes(v, t)) names += (names.empty() ? "" : ", ") + std::string(dtype_name(t));
  }
  return names;
}

}  // namespace

void find_contenders(const Question& question, Contenders* out) {
  const Problem &p = question.problem, &product = question.product;
  const DeviceFacts& facts = question.facts;
  const bool has_epilogue = p.act != Activation::kNone || p.bias || p.pre_activation || p.c.data;
  Problem timed = product;  // as it was when a table's times were measured
  timed.numerics = NumericsMode::kFast;
  timed.b_is_a_transposed = false;
  const bool is_as_timed = !question.is_batch_invariant() && !product.b_is_a_transposed;
  if (!is_built_for(facts.cc)) return;
  const Answers of_product(product, facts);
  std::optional<Answers> with_epilogue;
  if (has_epilogue) with_epilogue.emplace(p, facts);
  const Answers& of_problem = has_epilogue ? *with_epilogue : of_product;
  for (const int id : variants_for(p)) {
    const Variant& v = variant(id);
    if (!fits_device_and_modes(v, p, facts) || !of_problem.eligible(v) || !fits_workspace(v, p, facts)) continue;
    const double product_us = of_product.predict_us(v);
    const bool runs_as_timed = is_as_timed || (may_be_chosen(v, timed) && v.eligible(timed, facts, nullptr) &&
                                               v.predict_us(timed, facts) == product_us);
    out->all[out->count++] = {
        .id = id,
        .product_us = product_us,
        .epilogue_us = has_epilogue ? std::max(0.0, of_problem.predict_us(v) - product_us) : 0.0,
        .runs_as_timed = runs_as_timed,
        .merges = Answers::merges(v),
    };
  }
}

bool is_unasked(const Problem& p, const DeviceFacts& facts) {
  if (p.dtype != DType::kF32 && p.dtype != DType::kC64) return false;
  const std::vector<int>& ids = automatic_variants();
  return std::any_of(ids.begin(), ids.end(),
                     [&](int id) { return !may_be_chosen(variant(id), p) && can_run(variant(id), p, facts, nullptr); });
}

bool splits_float32(const Contender& contender) {
  return takes_planes(variant(contender.id).arithmetic);
}

bool can_run(const Variant& v, const Problem& p, const DeviceFacts& facts, std::string* why) {
  const bool is_built = is_built_for(facts.cc);
  const bool fits = is_built && takes(v, p.dtype) && fits_device_and_modes(v, p, facts);
  if (!fits && why == nullptr) return false;
  const bool is_eligible = v.eligible(p, facts, nullptr);
  if (fits && is_eligible && fits_workspace(v, p, facts)) return true;
  if (why == nullptr) return false;
  const auto add = [why](const std::string& reason) { *why += (why->empty() ? "" : "; ") + reason; };
  if (facts.cc < v.min_cc) add(format("needs sm_%d or newer, this GPU is sm_%d", v.min_cc, facts.cc));
  if (facts.cc > v.max_cc) add(format("needs sm_%d or older, this GPU is sm_%d", v.max_cc, facts.cc));
  if (!is_built) add(format("compiled for %s, this GPU is sm_%d", built_archs(), facts.cc));
  if (!takes(v, p.dtype)) add(format("supports %s, not %s", dtype_list(v).c_str(), dtype_name(p.dtype)));
  if (v.smem_bytes > facts.smem_optin) {
    add(format("needs %d bytes of shared memory per block, this GPU has %d", v.smem_bytes, facts.smem_optin));
  }
  if (cluster_of(v) > std::max(1, facts.sm_count)) {
    add(format("needs %d SMs for a cluster, this GPU or stream has %d", cluster_of(v), facts.sm_count));
  }
  if (!keeps_promise(v, p, facts)) add("not allowed by batch_invariant: another summation order or activation formula");
  if (is_eligible && !fits_workspace(v, p, facts)) {
    add(format("needs more workspace than the limit of %lld bytes", static_cast<long long>(p.most_workspace)));
  }
  Reason reason;
  if (!v.eligible(p, facts, &reason)) add(reason.text[0] != '\0' ? reason.text : "does not support this matmul");
  return false;
}

}  // namespace hgemm
