// A product with a short side as the kernels for those (sm90_skinny, skinny, gemv) see it.
#pragma once

#include "core/problem.h"

namespace hgemm {

/// D^T = W x^T: W the long operand, (rows, k), x the short one, (cols, k).
struct Roles {
  bool swapped;  // W is A, not B
  const Matrix *w, *x;
  Major w_major, x_major;
  int64_t rows, cols, ldw, ldx;
  bool wide;  // both consist of whole aligned 16-byte chunks, x along K
};

inline Roles roles_of(const Problem& p) {
  const bool swapped = p.m > p.n;
  Roles r = swapped ? Roles{true, &p.a, &p.b, p.a_major(), p.b_major(), p.m, p.n, p.lda(), p.ldb(), false}
                    : Roles{false, &p.b, &p.a, p.b_major(), p.a_major(), p.n, p.m, p.ldb(), p.lda(), false};
  r.wide = alignment_a(p) == 16 && alignment_b(p) == 16 && p.k % 8 == 0 && r.x_major == Major::kK &&
           (r.w_major == Major::kK || r.rows % 8 == 0);
  return r;
}

}  // namespace hgemm
