// What the ladder's list (ladder.cc) and its CUDA side share: problems and launchers.
#pragma once

#include "core/problem.h"

namespace hgemm::ladder {

/// A product as a step's launcher gets it.
struct StepProblem : Problem {
  int32_t swizzle_stride = 0;  // steps that swizzle walk C in panels of this many columns; 0: of their own choice
};

/// c = a + b over `count` elements. Any alignment that the dtype allows; c may be a or b.
struct AddProblem {
  const void* a = nullptr;
  const void* b = nullptr;
  void* c = nullptr;
  int64_t count = 0;
};

// A launcher enqueues on `stream` and returns a cudaError_t. Of a StepProblem it reads m, n, k >= 1, the pointers of a,
// b and d, swizzle_stride, and the row strides of a and b (at least k and n; whole 16-byte chunks, as the pointers,
// where the unit is WGMMA). d is m x n without gaps.
#define RUNG(NAME, ...) Status launch_##NAME(const StepProblem&, Stream stream);
#define RUNG_ADD(NAME, ...) Status launch_##NAME(const AddProblem&, Stream stream);
#include "ladder/variants.inc"

}  // namespace hgemm::ladder
