// The problems and launchers of the ladder, which its list (ladder.cc) and its CUDA files share.
#pragma once

#include "core/problem.h"

namespace hgemm::ladder {

/// A GEMM as a step's launcher takes it.
struct StepProblem : Problem {
  int32_t swizzle_stride = 0;  // width in columns of the panels in which steps that swizzle walk C; 0: their own choice
};

/// c = a + b over `count` elements. The pointers need no more than the dtype's alignment, and c may be a or b.
struct AddProblem {
  const void* a = nullptr;
  const void* b = nullptr;
  void* c = nullptr;
  int64_t count = 0;
};

// A launcher enqueues its kernel on `stream` and returns a cudaError_t. Of a StepProblem it reads m, n and k, each at
// least 1; the pointers of a, b and d; swizzle_stride; and the row strides of a and b, which are at least k and n.
// Where UNIT is WGMMA, the pointers and row strides of a and b are whole 16-byte chunks. d is m x n and contiguous.
#define RUNG(NAME, ...) Status launch_##NAME(const StepProblem&, Stream stream);
#define RUNG_ADD(NAME, ...) Status launch_##NAME(const AddProblem&, Stream stream);
#include "ladder/variants.inc"

}  // namespace hgemm::ladder
