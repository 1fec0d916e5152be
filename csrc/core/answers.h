// Several variants' answers about one problem.
#pragma once

#include "core/problem.h"

namespace hgemm {

/// What Variant::eligible and Variant::predict_us answer, for a family with many variants: what the answers about one
/// problem have in common is computed once. `index` is the variant's place in the family's list.
struct FamilyAnswers {
  static constexpr int kCommonBytes = 160;

  /// Writes what the answers have in common to `common`. It refers to the problem and the facts.
  void (*prepare)(const Problem& problem, const DeviceFacts& facts, void* common);
  bool (*eligible)(const void* common, int index);
  double (*predict_us)(const void* common, int index);

  /// Whether an output tile of the variant has rows of several matrices of the batch, which share B.
  bool (*merges)(int index);
};

extern const FamilyAnswers kSm90WgmmaAnswers;

}  // namespace hgemm
