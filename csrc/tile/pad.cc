#include "tile/pad.h"

namespace hgemm {
namespace {

int64_t round_up(int64_t x, int64_t to) {
  return (x + to - 1) / to * to;
}

/// The extents of a padded copy of one operand: `rows` rows of `ld` elements per batch.
struct Copy {
  int64_t rows, ld, batch[2];
  int64_t elements() const { return batch[0] * batch[1] * rows * ld; }
  size_t bytes() const { return static_cast<size_t>(elements()) * 2; }
};

Copy copy_of(const Problem& p, const Matrix& x, int64_t rows, int64_t cols) {
  // Long rows start on whole 128-byte lines, which TMA reads faster. Short rows would grow too much.
  const int64_t ld = round_up(cols, cols >= 512 ? 64 : 8);
  return {rows, ld, {x.batch_stride[0] == 0 ? 1 : p.batch[0], x.batch_stride[1] == 0 ? 1 : p.batch[1]}};
}
Copy copy_of_a(const Problem& p) {
  return p.a_major() == Major::kK ? copy_of(p, p.a, p.m, p.k) : copy_of(p, p.a, p.k, p.m);
}
Copy copy_of_b(const Problem& p, const Pads& pads) {
  if (p.b_major() == Major::kK) return copy_of(p, p.b, p.n, p.k);
  if (pads.b_tile == 0) return copy_of(p, p.b, p.k, p.n);
  return copy_of(p, p.b, p.k, (p.n + pads.b_tile - 1) / pads.b_tile * pitch_of(pads.b_tile));
}

Matrix place(const Matrix& x, const Copy& copy, bool unit_col_stride, void* at) {
  Matrix out;
  out.data = at;
  out.row_stride = unit_col_stride ? copy.ld : 1;
  out.col_stride = unit_col_stride ? 1 : copy.ld;
  out.batch_stride[0] = x.batch_stride[0] == 0 ? 0 : copy.batch[1] * copy.rows * copy.ld;
  out.batch_stride[1] = x.batch_stride[1] == 0 ? 0 : copy.rows * copy.ld;
  return out;
}

}  // namespace

size_t PaddedBytes::a(const Problem& p) const {
  return pads_.a ? copy_of_a(p).bytes() : 0;
}

size_t PaddedBytes::b(const Problem& p) const {
  return pads_.b ? copy_of_b(p, pads_).bytes() : 0;
}

Problem padded_problem(const Problem& p, const Pads& pads, const PadMemory& memory) {
  Problem out = p;
  if (pads.a) out.a = place(p.a, copy_of_a(p), p.a_major() == Major::kK, memory.a);
  if (pads.b) {
    out.b = place(p.b, copy_of_b(p, pads), p.b_major() == Major::kMN, memory.b);
    out.b_tile = p.b_major() == Major::kMN ? pads.b_tile : 0;
  }
  return out;
}

}  // namespace hgemm
