// The first step of a decision: which kernels can run a problem.
#pragma once

#include <string>

#include "dispatch/decision.h"
#include "dispatch/registry.h"

namespace hgemm {

/// One kernel that can run a problem, with the times that its analytic model predicts.
struct Contender {
  int id;
  double product_us;   // of the product alone
  double epilogue_us;  // what the epilogue adds
  bool runs_as_timed;  // The kernel cuts K into as many slices as it did when it was timed for a table.
};

/// In the order of ids. Left uninitialised beyond `count`, as decisions are made on the stack.
struct Contenders {
  int count = 0;
  Contender all[kMaxVariants];

  const Contender* begin() const { return all; }
  const Contender* end() const { return all + count; }
};

/// Fills `out`, which must be fresh, with the kernels that may be chosen without being named.
void find_contenders(const Question& question, Contenders* out);

/// Whether a contender computes float32 out of bfloat16 planes.
bool splits_float32(const Contender& contender);

/// Whether a variant, named or not, can run a problem. `why`, when given and it cannot, receives every reason, with
/// "; " between them.
bool can_run(const Variant& v, const Problem& problem, const DeviceFacts& facts, std::string* why);

}  // namespace hgemm
