// Grouped products as plain data: the product itself, and a kernel that may run it.
#pragma once

#include <cstdint>

#include "core/host_device.h"
#include "core/problem.h"

namespace hgemm {

/// What the groups of a grouped product divide.
///
/// kRows: D[rows of g] = A[rows of g] @ B[g] for consecutive groups g of A's rows, each with a B of its own: the layers
/// of a mixture of experts. m is the number of rows of A and D, and their batch stride is 0.
/// kInner: D[g] = A[:, k of g] @ B[k of g], the gradients of the weights of such layers. k is that of all groups, and
/// the batch stride of A and B is 0.
/// kColumns: D[:, columns of g] = A[g] @ B[:, columns of g]. n is the number of columns of B and D, whose batch stride
/// is 0.
enum class Divided : int32_t { kRows, kInner, kColumns };

/// Which of two launches computes a product. Which of two kernels is faster depends on the groups, and only the device
/// knows them. So both are launched, and one of them finds that it has nothing to do. The second one computes
///
///   the rows, if few_rows is not 0   if the groups that have any rows have more than few_rows on average;
///   the rows, if few_rows is 0       if its work tiles take less time than those of the first (WorkTiles);
///   the k                            if one group has at least half of all.
///
/// kSecond is the next launch in the stream after kFirst, and starts before that has ended.
enum class Launch : int32_t { kOnly, kFirst, kSecond };

/// The work tiles of a kernel that computes groups of rows.
struct WorkTiles {
  int32_t rows = 1;      // of a tile. No tile has rows of two groups
  uint32_t columns = 1;  // tiles along the columns of D
  uint32_t at_once = 1;  // tiles that the device computes at a time
  uint32_t ns = 0;       // the time of a tile

  /// The time of a product in ns. `row_tiles`: tiles along the rows of all groups. Both launches compute it alike,
  /// because it consists of integers.
  HGEMM_HOST_DEVICE uint64_t product_ns(uint32_t row_tiles) const {
    return uint64_t{(row_tiles * columns + at_once - 1) / at_once} * ns;
  }
};

/// A product whose operands are divided into groups. In PyTorch: F.grouped_mm(A, B, offs=ends).
struct GroupedProduct {
  /// The number of groups is batch[1]. `bias` is (groups, n). With `gated`, n counts the columns of gate and up, and D
  /// has half of them.
  Problem product;

  /// On the device: for each group, the index behind its last row or its last k, not decreasing. The host never reads
  /// it. Rows behind the last group's end are not written.
  const int32_t* ends = nullptr;

  Divided divided = Divided::kRows;

  Launch launch = Launch::kOnly;
  int few_rows = 0;    // of a group
  WorkTiles tiles[2];  // of the first launch and of the second
};

/// A kernel of grouped products, as constant data. kernels/variants.h launches it.
struct GroupedKernel {
  /// The name in reports.
  const char* name;

  /// The compute capabilities that it runs on, and the bit set of the dtypes of its operands, as in Variant.
  int min_cc, max_cc;
  uint32_t dtypes;

  /// The values of Divided that it takes, a bit set: bit 1 << static_cast<int>(Divided).
  uint32_t forms;

  /// The largest number of groups.
  int max_groups;

  /// The rows and columns of D that a work tile has, and the blocks that compute it together.
  int rows, columns, blocks;

  /// The kernel applies Problem::bias, a row for each group, and Problem::act, or Problem::gated where the weights are
  /// K-major.
  bool finishes, gates;

  /// Operands that the kernel takes where they lie. kTma: row-major ones, or column-major ones where it has a matrix
  /// for each group, or groups of k; rows start at multiples of 16 bytes. kWhole: the index of an operand that is
  /// contiguous consists of whole aligned chunks of 16 bytes, and is not the divided one. kAny: all.
  enum class Takes { kTma, kWhole, kAny } takes;
};

/// The bit of a form in GroupedKernel::forms.
constexpr uint32_t form_bit(Divided divided) {
  return 1u << static_cast<int>(divided);
}

}  // namespace hgemm
