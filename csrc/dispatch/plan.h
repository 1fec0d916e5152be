// From the operands of a call to a kernel that is ready to be launched, or to torch: the one sequence behind both
// doors, csrc/aten (through gemm_api.h) and csrc/torch.
//
//   canonicalize   the operands become a Problem            canonical.h
//   modes          numerics and float32                     invariance.h
//   device         can this library run there               devices.h
//   choose         a kernel, torch, or a refusal            choose.h
//   workspace      how much memory the kernel needs
//
// A door turns torch's tensors into a Request, allocates what the plan says (the result, copies of operands, the
// workspace), and calls launch().
#pragma once

#include <string>

#include "core/problem.h"
#include "dispatch/canonical.h"
#include "dispatch/gemm_api.h"

namespace hgemm {

/// One call of an op, and what it asks for.
struct Request {
  Operands operands;
  /// Where the result is to go; null: to new memory. Its dtype and device are the door's business.
  const TensorView* out = nullptr;
  /// The caller's out=, for an op that never resizes it: its shape must be the result's, else the outcome is kInvalid.
  /// It may be set where `out` is null, because the result is first written to new memory.
  const TensorView* fixed_out = nullptr;
  /// The argument of the activation is wanted as well, in new memory.
  bool saves_pre_activation = false;
  /// False where the operands have a dtype that DType has no name for. Then only their sizes and strides are looked at.
  bool has_known_dtype = true;
  int ordinal = 0;                  // of the CUDA device
  int variant = kAuto;              // a kernel that the call names, or kTorch
  int numerics = kAuto;             // a NumericsMode, or kAuto: what the context asks for
  int float32 = kAuto;              // a Float32Mode, or kAuto: the same
  bool allows_tf32 = false;         // torch may compute a float32 product in TF32, or the caller does not know
  bool in_backward = false;         // the call is autograd's
  HgemmLeft left = HGEMM_LEFT_NOT;  // why the door leaves the call to torch, where it does
};

enum class Outcome : int {
  kInvalid = -2,  // The shapes do not fit; Plan::message says why. torch says so in its own words.
  kRefused = -1,  // Neither a kernel nor torch may run it; Plan::message says why.
  kTorch = 0,
  kOurs = 1,
};

/// A kernel and its problem: all that a launch needs but memory. Plain data, which may be copied as bytes.
struct Job {
  Problem problem;
  DeviceFacts facts;
  int variant = kTorch;
};

struct Plan {
  Outcome outcome = Outcome::kInvalid;
  std::string message;  // of kInvalid and kRefused
  /// The result's shape, and which operands have to be copied. Final unless the outcome is kInvalid.
  Canonical canonical;
  DeviceFacts facts;  // of kOurs, as what follows
  int variant = kTorch;
  int64_t workspace = 0;  // bytes
  /// Of Op::kLinearGated: the kernel applies the gate itself, and its result has half as many columns.
  bool gates = false;

  Job job() const { return {canonical.problem, facts, variant}; }
};

/// Fills `plan`, which must be fresh, and returns its outcome. Counts the call while a context holds. Of
/// Op::kLinearGated the product is decided on by itself, without activation.
Outcome make_plan(const Request& request, Plan* plan);

/// Memory of a launch, on the problem's device. What the plan does not ask for stays null.
struct Memory {
  void* d = nullptr;
  void* pre_activation = nullptr;
  void* a_copy = nullptr;
  void* b_copy = nullptr;
  void* workspace = nullptr;
};

/// Enqueues the kernel of a job on `stream`. Returns a cudaError_t. The memory may be given back to an allocator that
/// reuses it in the order of the stream.
Status launch(const Job& job, const Memory& memory, Stream stream);

/// The error text for a launch that failed.
std::string launch_error(const Job& job, Status status);

}  // namespace hgemm
