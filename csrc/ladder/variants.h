// The ladder's lists. Filled by ladder.cc from variants.inc.
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
