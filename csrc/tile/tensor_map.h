// TMA tensor maps of the operands, encoded once per distinct view.
#pragma once

#include <cuda.h>

#include "core/problem.h"

namespace hgemm {

/// A batch of row-major matrices of 16-bit elements, read or written in boxes of up to 64 columns (128 bytes), swizzled
/// over as many. The matrices in a box follow one another.
struct TmaView {
  void* data;
  DType dtype;
  int64_t cols, rows, ld;   // elements; ld is the distance of two rows
  int64_t batch[2];         // outer, inner; 1 where the batch does not move the matrix
  int64_t batch_stride[2];  // elements
  int box_rows;
  int box_batch[2] = {1, 1};  // outer, inner: matrices in a box
  int box_cols = 64;          // 8, 16, 32 or 64
  bool plain = false;         // no swizzle: rows of a box as they lie
};

/// Copies the view's tensor map to `map`, from a small cache of this thread or by encoding it. Returns a cudaError_t.
Status tensor_map(const TmaView& view, CUtensorMap* map);

}  // namespace hgemm
