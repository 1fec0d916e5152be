// A product with a short side as kernels take it that read W and x where they lie.
#pragma once

#include <cstdint>

#include "core/problem.h"
#include "core/roles.h"

namespace hgemm::tile {

/// What a kernel's Params have of W and x: addresses, strides in elements, extents.
template <class Params>
void set_operands(const Problem& p, const Roles& roles, Params* params) {
  params->w = roles.w->data;
  params->x = roles.x->data;
  params->ldw = roles.ldw;
  params->x_row = roles.x_major == Major::kK ? roles.ldx : 1;
  params->x_k = roles.x_major == Major::kK ? 1 : roles.ldx;
  for (int i = 0; i < 2; ++i) {
    params->w_batch[i] = roles.w->batch_stride[i];
    params->x_batch[i] = roles.x->batch_stride[i];
  }
  params->batch_inner = static_cast<uint32_t>(p.batch[1]);
  params->rows = static_cast<int>(roles.rows);
  params->cols = static_cast<int>(roles.cols);
  params->k = static_cast<int>(p.k);
  params->swapped = roles.swapped;
}

}  // namespace hgemm::tile
