// TMA tensor maps of operands. Each distinct view is encoded once and then cached.
#pragma once

#include <cuda.h>

#include "core/problem.h"

namespace hgemm {

/// A batch of row-major matrices of 16-bit elements, or of float32, that TMA reads or writes in boxes of up to 128
/// bytes along a row. The swizzle spans the width of the box. A box may cover several consecutive matrices.
struct TmaView {
  void* data;
  DType dtype;
  int64_t cols, rows, ld;   // elements; ld is the row pitch
  int64_t batch[2];         // outer, inner; 1 if all batches use the same matrix
  int64_t batch_stride[2];  // elements
  int box_rows;
  int box_batch[2] = {1, 1};  // outer, inner: matrices in a box
  int box_cols = 64;          // 8, 16, 32 or 64; of float32 at most 32
  bool plain = false;         // true: no swizzle
};

/// Copies the tensor map of `view` to `map`, from a small cache of this thread or by encoding it. Returns a
/// cudaError_t.
Status tensor_map(const TmaView& view, CUtensorMap* map);

}  // namespace hgemm
