// A GEMM with a short side (small M or N), as the kernels for such shapes see it: sm90_skinny, skinny, gemv,
// simt_skinny, simt_gemv and sm90_split_skinny. They stream the long operand W, usually the weight, and multiply it
// with the short one, x.
#pragma once

#include "core/problem.h"

namespace hgemm {

/// The long operand W, (rows, k), and the short operand x, (cols, k), of a problem. Their GEMM W @ x^T is (rows, cols).
/// D is its transpose, or, where `swapped`, W @ x^T itself.
struct ShortSide {
  /// W is A and D is W @ x^T, because M > N. Otherwise W is the transpose of B, and D is x @ W^T.
  bool swapped;

  /// The problem's operands that W and x are: A and B, or B and A.
  const Matrix *w, *x;

  /// The memory orders of W and x: kK if k is contiguous, kMN if the rows of W, or the cols of x, are.
  Major w_major, x_major;

  /// The longer and the shorter of M and N; the leading dimensions of W and x in elements.
  int64_t rows, cols, ldw, ldx;

  /// Both operands consist of whole aligned 16-byte chunks of eight 16-bit elements, and x is K-major.
  bool wide;
};

/// Returns the problem's short-side form. The pointers in it point into `p`.
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
