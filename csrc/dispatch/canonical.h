// Turns the operands of an op into a Problem: applies torch's shape rules, then gives the matrices the strides that
// kernels need. Without torch and without CUDA.
#pragma once

#include <cstdint>
#include <string>

#include "core/problem.h"

namespace hgemm {

/// The largest number of dimensions that torch's own iterators take.
constexpr int kMaxDims = 64;

/// A strided tensor, borrowed for the time of a call. Strides count elements and are not negative.
struct TensorView {
  const void* data = nullptr;
  int32_t ndim = 0;
  const int64_t* sizes = nullptr;
  const int64_t* strides = nullptr;
  DType dtype = DType::kF16;
  bool is_conjugated = false;  // the elements are the conjugates of what memory holds; for operands a and b
};

enum class Op : int32_t {
  kMatmul = 0,
  kMm = 1,
  kBmm = 2,
  kAddmm = 3,
  kBaddbmm = 4,
  kLinear = 5,
  kLinearSave = 6,
  kLinearGated = 7
};

constexpr bool is_linear(Op op) {
  return op == Op::kLinear || op == Op::kLinearSave || op == Op::kLinearGated;
}

/// The op's name: "matmul", "mm", …
const char* op_name(Op op);

/// The names that the op's schema gives to a, b and c.
struct ArgumentNames {
  const char *a, *b, *c;
};
ArgumentNames argument_names(Op op);

/// Sizes as Python prints a tuple: "(4, 5)".
std::string shape_text(int ndim, const int64_t* sizes);

/// The operands of one call: out = act(alpha * a @ b + beta * c); for linear, out = act(a @ b.T + c).
struct Operands {
  Op op = Op::kMatmul;
  TensorView a, b;
  const TensorView* c = nullptr;  // may be null; broadcasts to the output, or for linear to the rows of weight
  double alpha = 1.0, beta = 1.0;
  Activation act = Activation::kNone;
  DType out_dtype = DType::kF16;
  int max_batch_dims = 2;  // 1: for a GEMM that takes a single batch stride, such as torch.bmm
};

/// The contiguous copy of an operand that a kernel needs. The caller views the operand with these sizes and strides,
/// and copies the view. A broadcast that two batch strides cannot express is written out in the copy.
struct Copy {
  bool needed = false;
  int32_t ndim;
  int64_t sizes[kMaxDims];
  int64_t strides[kMaxDims];
};

struct Canonical {
  /// The problem after the copies are made. The caller sets the data of copied operands and of d; everything else is
  /// final.
  Problem problem;
  Copy copy_a, copy_b;
  int32_t out_ndim = 0;
  int64_t out_sizes[kMaxDims];  // the output is contiguous
  std::string error;            // why canonicalize() returned false: "hgemm::<op>: …"

  bool empty() const { return problem.m == 0 || problem.n == 0 || problem.batches() == 0; }
};

/// A row pitch for the only row of a matrix, which has `extent` elements. No address depends on it, but alignment is
/// read from it: so it is a multiple of 8 elements, which is 16 bytes of the narrowest type.
constexpr int64_t lone_stride(int64_t extent) {
  constexpr int64_t kVector = 8;
  return extent > kVector ? (extent + kVector - 1) / kVector * kVector : kVector;
}

/// Checks the shapes and fills `out`, which must be newly constructed. Returns false, with out->error set, where they
/// do not fit. Beyond the invariants of Problem, the result has these properties:
///  - Batch dimensions that one stride can describe are merged. Where b does not vary over the batch, and the rows of a
///    continue across it, the batch is folded into m: (B, S, K) @ (K, N) is one GEMM of B * S rows. Tiny batches of
///    float64 and complex numbers stay batches, since no kernel takes such a GEMM.
///  - Where b does not vary along the innermost batch dimension that is left, and that is longer than a has rows, the
///    two are exchanged, if max_batch_dims is 2, m or n is above 64, and a is contiguous along k
///    (Problem::rows_are_batch).
///  - At most max_batch_dims batch dimensions remain. A single one is batch[1].
///  - A stride over an extent of one is 0 for batch dimensions and for c. For a, b and d it is a stride that allows
///    vector loads.
///  - The leading dimension of a or b may be smaller than the extent that it steps over, even 0: the operand may be an
///    expanded or overlapping view.
///  - c is dropped where beta is 0. It becomes `bias` where beta is 1 and c is one contiguous row of the operands'
///    dtype.
bool canonicalize(const Operands& operands, Canonical* out);

}  // namespace hgemm
