// Grouped products as plain data: the product itself, and a kernel that may run it.
#pragma once

#include <cstdint>

#include "core/problem.h"

namespace hgemm {

/// What the groups of a grouped product divide.
///
/// kRows: D[rows of g] = A[rows of g] @ B[g] for consecutive groups g of A's rows, each with a B of its own: the layers
/// of a mixture of experts. m is the number of rows of A and D, and their batch stride is 0.
/// kInner: D[g] = A[:, k of g] @ B[k of g], the gradients of the weights of such layers. k is that of all groups, and
/// the batch stride of A and B is 0. A is column-major and B row-major.
enum class Divided : int32_t { kRows, kInner };

/// A product whose operands are divided into groups. In PyTorch: F.grouped_mm(A, B, offs=ends).
struct GroupedProduct {
  /// The number of groups is batch[1].
  Problem product;

  /// On the device: for each group, the index behind its last row or its last k, not decreasing. The host never reads
  /// it. Rows behind the last group's end are not written.
  const int32_t* ends = nullptr;

  Divided divided = Divided::kRows;
};

/// A kernel of grouped products, as constant data. kernels/variants.h launches it.
struct GroupedKernel {
  /// The name in reports.
  const char* name;

  Divided divided;

  /// The largest number of groups.
  int max_groups;

  /// The columns of D that a work tile has.
  int columns = 0;
};

}  // namespace hgemm
