// Operands of an op -> Problem: torch's shape rules, then the strides that kernels like. No torch, no CUDA.
#pragma once

#include <cstdint>
#include <string>

#include "core/problem.h"

namespace hgemm {

/// The most dimensions that torch's own iterators take.
constexpr int kMaxDims = 64;

/// A strided tensor, borrowed. Strides count elements and are not negative.
struct TensorView {
  const void* data = nullptr;
  int32_t ndim = 0;
  const int64_t* sizes = nullptr;
  const int64_t* strides = nullptr;
  DType dtype = DType::kF16;
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

/// "matmul", "mm", …
const char* op_name(Op op);

/// The names an op's schema gives a, b and c.
struct ArgumentNames {
  const char *a, *b, *c;
};
ArgumentNames argument_names(Op op);

/// "(4, 5)", as Python prints a tuple.
std::string shape_text(int ndim, const int64_t* sizes);

/// out = act(alpha * a @ b + beta * c); for linear, out = act(a @ b.T + c).
struct Operands {
  Op op = Op::kMatmul;
  TensorView a, b;
  const TensorView* c = nullptr;  // broadcasts to the output (of linear: to the rows of weight); may be null
  double alpha = 1.0, beta = 1.0;
  Activation act = Activation::kNone;
  DType out_dtype = DType::kF16;
  int max_batch_dims = 2;  // 1: for a GEMM that knows one batch stride (torch.bmm)
};

/// A contiguous copy that an operand needs before the problem can run: of the operand seen with these sizes and strides
/// (a broadcast that no pair of batch strides can express is written out).
struct Copy {
  bool needed = false;
  int32_t ndim;
  int64_t sizes[kMaxDims];
  int64_t strides[kMaxDims];
};

struct Canonical {
  /// As it is once the copies are made. The caller sets the data of copied operands and of d; everything else is final.
  Problem problem;
  Copy copy_a, copy_b;
  int32_t out_ndim = 0;
  int64_t out_sizes[kMaxDims];  // the output is contiguous
  std::string error;            // why canonicalize() returned false: "hgemm::<op>: …"

  bool empty() const { return problem.m == 0 || problem.n == 0 || problem.batches() == 0; }
};

/// The stride over an extent of one, past `extent` elements: whole 16-byte accesses of the narrowest type.
constexpr int64_t lone_stride(int64_t extent) {
  constexpr int64_t kVector = 8;
  return extent > kVector ? (extent + kVector - 1) / kVector * kVector : kVector;
}

/// Checks shapes and fills `out`, which must be fresh. Beyond what Problem promises:
///  - batch dimensions that share a stride are merged, and rows of a that follow each other across the batch are folded
///    into m where b does not vary: (B, S, K) @ (K, N) is one GEMM of B * S rows;
///  - at most max_batch_dims batch dimensions remain; a single one is batch[1];
///  - a stride over an extent of one is 0 (batch, c) or whatever suits vector loads (a, b, d);
///  - leading strides of a and b may be smaller than the extent they step over, even 0 (expanded or overlapping views);
///  - c is dropped where beta is 0, and becomes `bias` where it is one contiguous row of dtype and beta is 1.
bool canonicalize(const Operands& operands, Canonical* out);

}  // namespace hgemm
