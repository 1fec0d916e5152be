// A problem with a short side as the kernels for those (sm90_skinny, skinny, gemv, simt_skinny, simt_gemv) see it.
#pragma once

#include "core/problem.h"

namespace hgemm {

/// D^T = W x^T: W is the long operand, (rows, k), x the short one, (cols, k).
struct ShortSide {
  bool swapped;  // W is A, not B
  const Matrix *w, *x;
  Major w_major, x_major;
  int64_t rows, cols, ldw, ldx;
  bool wide;  // both consist of whole aligned 16-byte chunks, and x lies along K
};

inline ShortSide short_side_of(const Problem& p) {
  ShortSide s{};
  s.swapped = p.m > p.n;
  s.w = s.swapped ? &p.a : &p.b;
  s.x = s.swapped ? &p.b : &p.a;
  s.w_major = s.swapped ? p.a_major() : p.b_major();
  s.x_major = s.swapped ? p.b_major() : p.a_major();
  s.rows = s.swapped ? p.m : p.n;
  s.cols = s.swapped ? p.n : p.m;
  s.ldw = s.swapped ? p.lda() : p.ldb();
  s.ldx = s.swapped ? p.ldb() : p.lda();
  s.wide = alignment_a(p) == 16 && alignment_b(p) == 16 && p.k % 8 == 0 && s.x_major == Major::kK &&
           (s.w_major == Major::kK || s.rows % 8 == 0);
  return s;
}

}  // namespace hgemm
