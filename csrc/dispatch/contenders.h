// The first step of a decision: finds the kernels that can run a problem.
#pragma once

#include <string>

#include "dispatch/decision.h"
#include "dispatch/registry.h"

namespace hgemm {

/// One kernel that can run a problem, with the microseconds that its analytic cost model predicts.
struct Contender {
  int id;
  double product_us;   // the matmul alone
  double epilogue_us;  // what the epilogue adds
  bool runs_as_timed;  // The kernel was timed for tables, and splits K into as many slices as it did then.
  bool merges;         // An output tile of the kernel has rows of several matrices of the batch, which share B.
};

/// The contenders, in the order of ids. Elements from `count` on stay uninitialised: a decision has this struct on its
/// stack, and would pay for the initialisation each time.
struct Contenders {
  int count = 0;
  Contender all[kMaxVariants];

  const Contender* begin() const { return all; }
  const Contender* end() const { return all + count; }
};

/// Fills `out`, which must be newly constructed, with the kernels that the dispatcher may choose for the problem.
void find_contenders(const Question& question, Contenders* out);

/// Whether a kernel could run a float32 or complex64 problem, and only the problem's float32 mode keeps the dispatcher
/// from choosing it.
bool is_unasked(const Problem& problem, const DeviceFacts& facts);

/// Whether a contender computes a float32 or complex64 matmul from planes of its operands.
bool splits_float32(const Contender& contender);

/// Whether a variant can run a problem, whether or not the call names it. Where it cannot and `why` is not null, every
/// reason is appended to `why`, separated by "; ".
bool can_run(const Variant& v, const Problem& problem, const DeviceFacts& facts, std::string* why);

}  // namespace hgemm
