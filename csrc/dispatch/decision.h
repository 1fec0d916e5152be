// The question that the steps of a decision answer, and the answer.
#pragma once

#include <cstdint>

#include "core/problem.h"

namespace hgemm {

enum class Source : int32_t {
  kForced = 0,    // an argument, the context manager or the environment named the kernel
  kTable = 1,     // the tuning table has this shape for this GPU
  kModel = 2,     // predicted by the cost model, which measured shapes nearby correct where there are any
  kFallback = 3,  // no kernel of ours can run the problem
};

/// The source's name: "forced", "table", "model" or "fallback".
const char* source_name(Source source);

/// Decision::variant of a refused call: the forced kernel cannot run it, or nothing can run it with the numerics that
/// are asked for. refusal() in explain.h has the error text.
constexpr int kRefused = -3;

/// What the words for a decision must mention besides its source.
enum class Remark : int8_t {
  kNone = 0,
  kUnasked = 1,         // a kernel could run the float32 problem, and only the problem's float32 mode rules it out
  kUnmeasuredChip = 2,  // torch was chosen because there are no measured times of this chip
  kTorchFaster = 3,     // a grouped product for which torch was measured faster
  kMayUseTf32 = 4,      // a grouped product in float32, for which torch may use TF32
  kNamesOther = 5,      // a grouped product in a context that names a kernel, which computes no grouped products
  kTorchRefuses = 6,    // a grouped product whose operands torch refuses, so that it raises its error
};

/// A decision, with everything that its reason in words is made of (reason_of() in explain.h). Reports keep it, so that
/// nothing has to be decided again when they are read.
struct Decision {
  int32_t variant = kTorch;  // a variant's id, kTorch, or kRefused
  Source source = Source::kFallback;
  float us = 0;                // predicted or measured microseconds of the choice; NaN where they were not needed
  float torch_us = 0;          // and of torch
  float margin = 1;            // how much faster than torch a kernel had to be
  int16_t neighbours = 0;      // the number of measured shapes nearby that corrected the predictions
  int8_t measured_dtype = -1;  // a DType: what the table was measured in, where that is not the problem's dtype
  Remark remark = Remark::kNone;
};

/// The question that a decision answers. Properties of the problem that several steps need are computed once, here. It
/// refers to the problem and the facts, which must outlive it.
struct Question {
  Question(const Problem& problem, const DeviceFacts& facts)
      : problem(problem), facts(facts), product(without_epilogue(problem)), alignments(alignments_of(problem)) {}

  const Problem& problem;
  const DeviceFacts& facts;
  const Problem product;        // the problem without its epilogue
  const Alignments alignments;  // of the problem; its product has the same

  bool is_batch_invariant() const { return problem.numerics != NumericsMode::kFast; }
};

}  // namespace hgemm
