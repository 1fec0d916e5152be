// The plan of a call: from its operands to a kernel that is ready to be launched, to torch, or to a refusal. All doors,
// the ways into the library from torch, share this one sequence: csrc/aten (through gemm_api.h) and csrc/torch.
//
//   canonicalize   turns the operands into a Problem                canonical.h
//   modes          resolves numerics and float32                    invariance.h
//   device         asks whether this library can run there          devices.h
//   choose         decides on a kernel, torch, or a refusal         choose.h
//   workspace      asks the kernel how much memory it needs
//
// A door turns torch's tensors into a Request, allocates what the plan says (the result, copies of operands, the
// workspace), and calls launch().
#pragma once

#include <cstdint>
#include <string>

#include "core/problem.h"
#include "dispatch/canonical.h"
#include "dispatch/gemm_api.h"
#include "dispatch/stats.h"

namespace hgemm {

/// One call of an op: its operands, and the kernel and modes that it asks for.
struct Request {
  Operands operands;
  /// The caller's out=, where the kernel may write to it directly; null: the result goes to new memory. The door has
  /// checked its dtype and device.
  const TensorView* out = nullptr;
  /// The caller's out=, for an op that never resizes it: its shape must be the result's, else the outcome is kInvalid.
  /// It may be set where `out` is null, because the result is first written to new memory.
  const TensorView* fixed_out = nullptr;
  /// The kernel is to write the argument of the activation as well, to new memory.
  bool saves_pre_activation = false;
  /// False where DType has no name for the operands' dtype. Torch then computes the call, and the plan only reads sizes
  /// and strides.
  bool has_known_dtype = true;
  int ordinal = 0;                  // of the CUDA device
  Stream stream = nullptr;          // that the kernel will run on
  int variant = kAuto;              // the kernel that the call names, kTorch, or kAuto: what the context names
  int numerics = kAuto;             // a NumericsMode, or kAuto: what the context asks for
  int float32 = kAuto;              // a Float32Mode, or kAuto: what the context asks for
  bool allows_tf32 = false;         // torch may compute a float32 matmul in TF32, or the caller does not know
  bool in_backward = false;         // autograd's backward pass makes the call
  HgemmLeft left = HGEMM_LEFT_NOT;  // why the door leaves the call to torch, where it does
};

enum class Outcome : int {
  kInvalid = -2,  // The shapes do not fit; Plan::message says why. csrc/aten lets torch raise its own error instead.
  kRefused = -1,  // Neither a kernel nor torch may compute the call; Plan::message says why.
  kTorch = 0,     // Torch computes the call.
  kOurs = 1,      // A kernel of this library does.
};

/// A kernel and its problem: everything that a launch needs, except memory. Plain data, which may be copied as bytes.
struct Job {
  Problem problem;
  DeviceFacts facts;
  int variant = kTorch;

  // What plan_with_less() needs to know of the call.
  int asked = kAuto;     // the kernel that the call or the context names; kAuto: none
  int ordinal = 0;       // of the CUDA device
  int site = 0;          // of the call, for the report
  CounterPlace counted;  // where the call was counted; its ledger is 0 where it was not
};

struct Plan {
  Outcome outcome = Outcome::kInvalid;
  std::string message;  // set where the outcome is kInvalid or kRefused
  /// The result's shape, and which operands have to be copied. Final unless the outcome is kInvalid.
  Canonical canonical;

  // The fields below are only set where the outcome is kOurs.
  Job job;
  int64_t workspace = 0;  // bytes
  /// Op::kLinearGated only. True: the kernel applies the gate itself, and the result has half the columns that
  /// canonical.out_sizes says. False: the kernel computes x @ weight.T, and the caller applies the gate.
  bool gates = false;
};

/// Fills `plan`, which must be newly constructed, and returns its outcome. Counts the call while a context is active on
/// this thread. For Op::kLinearGated it decides on the matmul alone, without the activation and the gate.
Outcome make_plan(const Request& request, Plan* plan);

/// Plans a job again whose memory could not be allocated, `workspace` bytes and the copies of operands. Returns
///   kTorch    Torch computes the call, which the report then counts as left to torch for want of memory.
///   kOurs     Torch should not compute it, or the call names a kernel. The caller is to try again with what `job` and
///             `workspace` now say: a smaller workspace or none.
///   kRefused  Nothing needs less memory, and torch must not compute the call: it names a kernel, or its numerics are
///             "batch_invariant_or_raise". The call is out of memory.
Outcome plan_with_less(Job* job, int64_t* workspace);

/// The memory of a launch, on the problem's device. A pointer stays null where the plan needs no such memory.
struct Memory {
  void* d = nullptr;
  void* pre_activation = nullptr;
  void* a_copy = nullptr;
  void* b_copy = nullptr;
  void* workspace = nullptr;
};

/// Enqueues the kernel of a job on `stream`, and returns a cudaError_t. The caller may give the memory back at once to
/// an allocator that reuses it in stream order.
Status launch(const Job& job, const Memory& memory, Stream stream);

/// Returns the error text for a launch that failed with `status`.
std::string launch_error(const Job& job, Status status);

}  // namespace hgemm
