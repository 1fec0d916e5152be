#include "dispatch/int8.h"

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "core/chip.h"
#include "dispatch/choose.h"
#include "dispatch/contenders.h"
#include "dispatch/registry.h"
#include "kernels/variants.h"

namespace hgemm {
namespace {

std::atomic<int> the_only{kAuto};

constexpr const VariantList* kLists[] = {&kSm90WgmmaInt8Variants, &kSm90SkinnyInt8Variants};

/// How much faster than torch a kernel must be predicted to be.
constexpr double kMargin = 1.02;

/// The predicted time of torch's kernel in microseconds: the longest of its math, its bytes, and the k of a tile, one
/// after the other, for K is never split. The constants were read off times of a warm H200, and lie rather below them.
/// If B is row-major, cuBLAS runs another kernel, at a seventh of the speed.
double torch_us(const Problem& p, const DeviceFacts& facts) {
  constexpr double kFixedUs = 4.3, kShare = 0.75;
  const bool is_fast = p.b_major() == Major::kK;
  const double tops = (is_fast ? 850 : 128) * facts.sm_count / 132.0, step_us = is_fast ? 0.2 : 3.7;
  const double steps_us = static_cast<double>(p.k) / 128 * step_us;
  const double bytes = static_cast<double>(p.k) * static_cast<double>(p.m + p.n) +
                       4.0 * static_cast<double>(p.m) * static_cast<double>(p.n);
  return kFixedUs + std::max({1e-6 * p.flops() / tops, steps_us, bytes / (1e3 * dram_gbs(facts) * kShare)});
}

}  // namespace

int int8_variant_count() {
  int count = 0;
  for (const VariantList* list : kLists) count += list->count;
  return count;
}

const Variant& int8_variant(int index) {
  for (const VariantList* list : kLists) {
    if (index < list->count) return list->variants[index];
    index -= list->count;
  }
  return kLists[0]->variants[0];
}

Decision select_int8(const Problem& p, const DeviceFacts& facts) {
  Decision decision{.source = Source::kFallback};
  const double of_torch = torch_us(p, facts);
  const int only = the_only.load(std::memory_order_relaxed);
  double least = 0;
  for (int i = 0; i < int8_variant_count(); ++i) {
    const Variant& v = int8_variant(i);
    if ((only != kAuto && i != only) || !can_run(v, p, facts, nullptr)) continue;
    const double us = v.predict_us(p, facts);
    if (decision.source == Source::kModel && us >= least) continue;
    decision.source = Source::kModel;
    decision.variant = i == only || us * kMargin < of_torch ? kFirstInt8Variant + i : kTorch;
    least = us;
  }
  decision.us = static_cast<float>(decision.variant == kTorch ? of_torch : least);
  decision.torch_us = static_cast<float>(of_torch);
  decision.margin = static_cast<float>(kMargin);
  return decision;
}

void set_int8_variant(int index) {
  the_only.store(index, std::memory_order_relaxed);
  invalidate_decisions();
}

}  // namespace hgemm
