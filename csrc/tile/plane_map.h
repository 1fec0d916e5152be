// The tensor map of an operand's planes (split_planes.h).
#pragma once

#include "tile/split_planes.h"
#include "tile/tensor_map.h"

namespace hgemm::tile::split {

/// Makes the tensor map of `planes` planes of elements of `dtype`. A box has `box_rows` rows of `box_planes` planes.
inline Status map_planes(const Side& side, DType dtype, int planes, int box_rows, int box_planes, CUtensorMap* map) {
  const Planes& layout = side.planes;
  const int64_t plane = layout.rows * layout.ld;
  TmaView view{};
  view.data = side.memory;
  view.dtype = dtype;
  view.cols = layout.k;
  view.rows = layout.rows;
  view.ld = layout.ld;
  view.batch[0] = layout.batch[0] * layout.batch[1];
  view.batch[1] = planes;
  view.batch_stride[0] = planes * plane;
  view.batch_stride[1] = plane;
  view.box_rows = box_rows;
  view.box_batch[1] = box_planes;
  return tensor_map(view, map);
}

}  // namespace hgemm::tile::split
