// Kernel arguments of a GEMM with a short side, for kernels that read W and x in place.
#pragma once

#include <cstdint>

#include "core/problem.h"
#include "core/short_side.h"

namespace hgemm::tile {

/// Sets the fields of a kernel's Params that describe W and x: addresses, strides in elements, and extents.
template <class Params>
void set_operands(const Problem& p, const ShortSide& sides, Params* params) {
  params->w = sides.w->data;
  params->x = sides.x->data;
  params->ldw = sides.ldw;
  params->x_row = sides.x_major == Major::kK ? sides.ldx : 1;
  params->x_k = sides.x_major == Major::kK ? 1 : sides.ldx;
  for (int i = 0; i < 2; ++i) {
    params->w_batch[i] = sides.w->batch_stride[i];
    params->x_batch[i] = sides.x->batch_stride[i];
  }
  params->batch_inner = static_cast<uint32_t>(p.batch[1]);
  params->rows = static_cast<int>(sides.rows);
  params->cols = static_cast<int>(sides.cols);
  params->k = static_cast<int>(p.k);
  params->swapped = sides.swapped;
}

}  // namespace hgemm::tile
