// TMA tensor maps of the operands of a Problem.
#pragma once

#include <cuda.h>

#include "core/problem.h"
#include "tile/tensor_map.h"

namespace hgemm::tile {

/// Encodes the tensor map of operand `x`, which has `rows` rows of `cols` elements with row pitch `ld`, in boxes of
/// (box_rows, box_cols). `plain`: without a swizzle. Sets `moves`, outer and inner, to ~0 if that batch index moves the
/// operand, and to 0 if the operand is broadcast along it.
inline Status operand_map(const Problem& p, const Matrix& x, int64_t rows, int64_t cols, int64_t ld, int box_rows,
                          CUtensorMap* map, int32_t (&moves)[2], int box_cols = 64, bool plain = false) {
  TmaView view{};
  view.data = x.data;
  view.dtype = p.dtype;
  view.cols = cols;
  view.rows = rows;
  view.ld = ld;
  view.box_rows = box_rows;
  view.box_cols = box_cols;
  view.plain = plain;
  for (int i = 0; i < 2; ++i) {
    moves[i] = x.batch_stride[i] == 0 ? 0 : ~0;
    view.batch[i] = x.batch_stride[i] == 0 ? 1 : p.batch[i];
    view.batch_stride[i] = x.batch_stride[i];
  }
  return tensor_map(view, map);
}

}  // namespace hgemm::tile
