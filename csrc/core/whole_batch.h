// Batches of small 16-bit matrices that lie in memory without gaps, for which batched_mma has kernels of their own:
// kernels/batched_mma/whole_kernel.cuh and in_place_kernel.cuh.
#pragma once

#include "core/problem.h"

namespace hgemm {

/// True if D is alpha * A @ B in the operands' type. It does not depend on alpha, and no decision may.
inline bool is_scaled_product(const Problem& p) {
  return p.c.data == nullptr && p.bias == nullptr && p.act == Activation::kNone && p.pre_activation == nullptr &&
         p.out_dtype == p.dtype;
}

/// True if both operands consist of whole aligned chunks of 16 bytes, which are eight 16-bit elements.
inline bool has_whole_chunks(const Problem& p) {
  return alignment_a(p) == 16 && alignment_b(p) == 16 && (p.a_major() == Major::kK ? p.k : p.m) % 8 == 0 &&
         (p.b_major() == Major::kK ? p.k : p.n) % 8 == 0;
}

/// The largest M and N, and the largest K, of matrices that are copied whole.
constexpr int kWholeSide = 64, kWholeK = 64;

/// True if both operands and D are 16-bit matrices that lie in memory without gaps between their rows, and D has no
/// epilogue but alpha.
inline bool has_no_gaps(const Problem& p) {
  const int64_t length_a = p.a_major() == Major::kK ? p.k : p.m, length_b = p.b_major() == Major::kK ? p.k : p.n;
  return p.is_half() && is_scaled_product(p) && p.lda() == length_a && p.ldb() == length_b && p.d.row_stride == p.n;
}

/// True if the matrices are small, do not consist of whole chunks, and lie in memory without gaps between their rows,
/// so that they can be copied whole.
inline bool is_whole_batch(const Problem& p) {
  return p.m <= kWholeSide && p.n <= kWholeSide && p.k > 0 && p.k <= kWholeK && !has_whole_chunks(p) && has_no_gaps(p);
}

}  // namespace hgemm
