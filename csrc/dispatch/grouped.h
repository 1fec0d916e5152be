// The plan of a grouped product, aten::_grouped_mm: which kernel computes it, or torch. Both doors share it.
//
// Torch's operator has four forms, by the dimensions of its operands. `offs`, int32 on the device, holds the end of
// each group along the dimension that is divided.
//
//   a            b            result         divided                   computed by
//   (rows, K)    (E, K, N)    (rows, N)      the rows of a             a grouped kernel
//   (M, K)       (K, N)       (E, M, N)      K                         a grouped kernel
//   (E, M, K)    (K, cols)    (M, cols)      the columns of b          a grouped kernel; on Hopper the first form,
//   transposed (E, M, K)    (E, K, N)    (E, M, N)      nothing, without offs     bmm
//
// There are two kinds of kernels. Those for Hopper read operands by TMA, which needs rows at multiples of 16 bytes, and
// the plan asks for copies of operands in another order. The others (sm80_mma, simt_grouped) read operands where they
// lie. On Hopper they compute float32, what TMA cannot read, and what there is no memory for copies for.
//
// Torch's kernel of bfloat16 operands ends the CUDA context by an assertion where a group starts at another address
// than a multiple of 16 bytes. That depends on `offs` where the divided dimension is the contiguous one of an operand,
// or of the result, as it always is in the third form. So torch does not get such a product if a kernel of ours can
// compute it from a copy of the operand in the other order.
//
// The host never reads `offs`, so the choice depends on the number of rows and of groups alone.
#pragma once

#include <string>

#include "core/grouped.h"
#include "core/problem.h"
#include "dispatch/c_api.h"
#include "dispatch/canonical.h"
#include "dispatch/decision.h"
#include "dispatch/gemm_api.h"
#include "dispatch/plan.h"

namespace hgemm {

struct GroupedRequest {
  TensorView a, b;
  bool has_known_dtypes = true;  // false where DType has no name for the dtype of an operand or of the result
  DType out_dtype = DType::kBF16;
  const TensorView* offs = nullptr;  // its dtype has no meaning
  bool offs_is_int32 = true;
  bool offs_is_elsewhere = false;  // on another device than the operands
  const void* bias = nullptr;      // (groups, columns), in the first form alone; null: none
  Activation act = Activation::kNone;
  bool gated = false;        // act(gate) * up, where gate and up are the halves of the columns
  int ordinal = 0;           // of the CUDA device
  Stream stream = nullptr;   // that the kernel will run on
  int variant = kAuto;       // an index into the list of grouped kernels, kTorch, or kAuto
  bool allows_tf32 = false;  // torch may compute a float32 product in TF32, or the caller does not know
  bool as_torch = false;     // what torch refuses is left to torch, so that it raises its error
  bool in_backward = false;
  HgemmLeft left = HGEMM_LEFT_NOT;  // why the door leaves the call to torch, where it does
};

/// Who computes a grouped product, and what the words for that are made of.
struct GroupedDecision {
  int kernel = kTorch;  // an index into the list of grouped kernels, or kTorch
  /// The kernel of a second launch, which computes the product for some groups (Launch in core/grouped.h); kTorch where
  /// `kernel` computes every product.
  int second = kTorch;
  int few_rows = 0;
  Source source = Source::kFallback;
  Remark remark = Remark::kNone;
};

/// A grouped kernel and its product: everything that a launch needs except memory. Plain data, which may be copied as
/// bytes.
struct GroupedJob {
  GroupedProduct grouped;
  DeviceFacts facts;
  int kernel = 0;
  int second = kTorch;         // as in GroupedDecision
  bool is_transposed = false;  // the product of the operands is the transpose of `grouped`

  // What plan_grouped_with_less() needs to know of the call.
  int in_place = kTorch;  // a kernel that takes the operands below where they lie, if `kernel` needs more memory
  Matrix a, b;            // of the product that is not transposed
  int asked = kAuto;      // the kernel that the call names; kAuto: none
  int ordinal = 0;        // of the CUDA device
  int site = 0;           // of the call, for the report
  CounterPlace counted;   // where the call was counted; its ledger is 0 where it was not
};

struct GroupedPlan {
  Outcome outcome = Outcome::kTorch;
  std::string message;  // set where the outcome is kInvalid or kRefused
  /// Torch's operator is a batched matmul here, for which the door is to plan Op::kBmm.
  bool is_bmm = false;

  // Set where the outcome is kOurs. The result is (rows, columns), or (groups, rows, columns) if `groups` is not 0,
  // with the row pitch `pitch`: rows start at multiples of 16 bytes, as torch has it.
  GroupedJob job;
  int64_t groups = 0, rows = 0, columns = 0, pitch = 0;

  /// The kernel takes copies: row-major matrices whose rows start at multiples of 16 bytes. The first is of a, of a's
  /// transpose if `groups` is not 0, and of b's transpose if `job.is_transposed`; the other one is of b. If
  /// `job.is_transposed`, the kernel computes the transpose of the result, which is to be copied.
  bool copies_a = false, copies_b = false;

  /// The kernel applies the request's bias and activation, or its gate, which then has halved `columns`. Otherwise the
  /// door applies them to the result.
  bool finishes = false;
};

/// Fills `plan`, which must be newly constructed, and returns its outcome. kInvalid: the sizes do not fit, which torch
/// would find out by an assertion of the device that ends the CUDA context. All other errors of the caller are left to
/// torch. Counts the call, unless it is a batched matmul, while a context is active on this thread.
Outcome plan_grouped(const GroupedRequest& request, GroupedPlan* plan);

/// Plans a job again whose memory, for the result and the copies, could not be allocated. Returns
///   kOurs     The caller is to try again: another kernel takes the operands where they lie, and `plan` says so.
///   kTorch    Torch computes the call, which the report then counts as left to torch for want of memory.
///   kRefused  Torch must not: the call names a kernel, or its numerics are "batch_invariant_or_raise". The call is out
///             of memory.
Outcome plan_grouped_with_less(GroupedPlan* plan);

/// The result's row pitch in elements.
constexpr int64_t grouped_pitch(int64_t columns, DType dtype) {
  const int64_t per_chunk = 16 / dtype_bytes(dtype);
  return (columns + per_chunk - 1) / per_chunk * per_chunk;
}

/// Decides on a call as plan_grouped() does, for a device with these facts. Contexts and counters take no part, but the
/// product's modes do.
GroupedDecision choose_grouped(const GroupedRequest& request, NumericsMode numerics, Float32Mode float32,
                               const DeviceFacts& facts);

/// The reason for a decision, in words.
std::string reason_of(const GroupedDecision& decision);

/// Why grouped kernel `index` does not take the operands of a call, even as copies; "" where it does.
std::string why_not(int index, const GroupedRequest& request, const DeviceFacts& facts);

/// A function that times a product whose sizes have no measured times, and adds them to models/grouped_table.h. It runs
/// within plan_grouped(). Null: nothing is timed.
using GroupedTunerFn = int (*)(const HgemmGroupedTuning*);
void set_grouped_tuner(GroupedTunerFn tuner);

/// HgemmCallKind::variant of grouped kernel i is kFirstGroupedKernel + i. Ids of variants are smaller.
constexpr int kFirstGroupedKernel = 1 << 16;

/// The number of grouped kernels, and one of them.
int grouped_kernel_count();
const GroupedKernel& grouped_kernel(int index);

/// Enqueues the kernel of a job on `stream`, and returns a cudaError_t. `d`: the memory of the result. `a_copy` and
/// `b_copy`: the copies that the plan asks for, else null.
Status launch(const GroupedJob& job, void* d, void* a_copy, void* b_copy, Stream stream);

/// Returns the error text for a launch that failed with `status`.
std::string launch_error(const GroupedJob& job, Status status);

}  // namespace hgemm
