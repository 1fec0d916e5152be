// The ladder's lists, which ladder.cc fills from variants.inc, and the functions of its library that Python calls
// (hgemm_ops/ops/ladder.py).
#pragma once

#include "core/problem.h"
#include "ladder/ladder.h"

namespace hgemm {

extern const Variant kLadderVariants[];
extern const int kLadderVariantCount;

namespace ladder {

/// One elementwise addition. It is an op of its own, not a variant of a GEMM.
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

/* Passes the list of GEMM steps to `add_variants`, which is hgemm_add_variants of dispatch/c_api.h, and returns its
   result. */
HGEMM_LADDER_API int hgemm_ladder_install(int (*add_variants)(const void* variants, int count, int variant_bytes,
                                                              const char* family));
/* Returns 1 if the step with this index in the list walks C in panels, else 0. */
HGEMM_LADDER_API int hgemm_ladder_swizzles(int index);
/* Sets the panel width, in columns, of the GEMMs that this thread launches from now on; 0 is each step's own choice,
   and the default. Returns the previous value. The width is not a field of Problem because only these kernels need
   it. */
HGEMM_LADDER_API int hgemm_ladder_set_swizzle_stride(int columns);
/* Sets `name` to the name of the addition with this index, and returns its dtype; -1 if there is no such addition. An
   addition is an op of its own, not a variant. */
HGEMM_LADDER_API int hgemm_ladder_addition(int index, const char** name);
