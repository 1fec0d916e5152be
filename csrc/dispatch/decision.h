// What the steps of a decision hand to each other: the question, and its answer.
#pragma once

#include <cstdint>

#include "core/problem.h"

namespace hgemm {

enum class Source : int32_t {
  kForced = 0,    // an argument, the context manager or the environment named the kernel
  kTable = 1,     // this very shape was measured on this GPU
  kModel = 2,     // predicted, where possible corrected by measured shapes nearby
  kFallback = 3,  // no kernel of ours can run the problem
};

/// "forced", "table", "model" or "fallback".
const char* source_name(Source source);

/// Decision::variant where a forced kernel, or none at all, can do what was asked for: see refusal() in explain.h.
constexpr int kRefused = -3;

struct Decision {
  int32_t variant = kTorch;  // a variant's id, kTorch, or kRefused
  Source source = Source::kFallback;
  float us = 0;        // predicted or measured time of the choice; NaN where it was not needed
  float torch_us = 0;  // and of torch
};

/// The question that a decision answers. What several steps ask of the problem is computed once, here.
struct Question {
  Question(const Problem& problem, const DeviceFacts& facts)
      : problem(problem), facts(facts), product(without_epilogue(problem)), alignments(alignments_of(problem)) {}

  const Problem& problem;
  const DeviceFacts& facts;
  const Problem product;        // the problem without its epilogue
  const Alignments alignments;  // of both

  bool is_batch_invariant() const { return problem.numerics != NumericsMode::kFast; }
};

}  // namespace hgemm
