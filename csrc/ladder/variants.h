// The ladder's lists, filled by ladder.cc from variants.inc, and what Python asks of their library
// (hgemm_ops/ops/ladder.py).
#pragma once

#include "core/problem.h"
#include "ladder/ladder.h"

namespace hgemm {

extern const Variant kLadderVariants[];
extern const int kLadderVariantCount;

namespace ladder {

/// An elementwise addition as data: an op of its own, not a variant of a GEMM.
struct Add {
  const char* name;
  DType dtype;
  Status (*launch)(const AddProblem&, Stream);
};
extern const Add kAdds[];
extern const int kAddCount;

}  // namespace ladder
}  // namespace hgemm

#define HGEMM_LADDER_API extern "C" __attribute__((visibility("default")))

/* Hands the list to `add_variants`, which is hgemm_add_variants of dispatch/c_api.h, and returns what it returns. */
HGEMM_LADDER_API int hgemm_ladder_install(int (*add_variants)(const void* variants, int count, int variant_bytes,
                                                              const char* family));
/* Whether a step, by its place in the list, walks C in panels. */
HGEMM_LADDER_API int hgemm_ladder_swizzles(int index);
/* Sets how many columns the panels have in products that this thread launches from now on, 0 for each step's own
   choice. Returns what was set before; 0 at first. A Problem has no such field, and no kernel but these needs one. */
HGEMM_LADDER_API int hgemm_ladder_set_swizzle_stride(int columns);
/* The dtype of an addition, an op of its own rather than a variant, and its name; -1 behind the last one. */
HGEMM_LADDER_API int hgemm_ladder_addition(int index, const char** name);
