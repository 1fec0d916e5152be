// Float32 operands as sums of three bfloat16 matrices (planes), and the layout of the planes in a kernel's workspace.
//
// x = x1 + x2 + x3, where each term is the bfloat16 nearest to the remainder. Three times 8 bits represent the 24 bits
// of a float32 exactly, as long as the bits of the last plane are not below the smallest bfloat16, 2^-133.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "core/problem.h"
#include "core/variant_list.h"
#include "tile/slabs.h"

namespace hgemm::tile::split {

constexpr int kPlanes = 3;
/// Elements of K in one segment of a row ("piece" in the code). A warp splits one segment, and each has one flag.
constexpr int kPiece = 256;

/// The planes of one operand, (matrices, planes, rows, ld), always K-major, and behind them the flags, (matrices, rows,
/// pieces): one byte per segment of a row, nonzero if the segment is too small for planes. A matrix that is broadcast
/// is stored once.
struct Planes {
  int64_t batch[2];  // outer, inner
  int64_t rows, k, ld, pieces;
  size_t tiny_at, bytes;  // offset of the flags and size of both, in bytes from the operand's start in the workspace
};

inline Planes planes_of(const Problem& p, const Matrix& x, int64_t rows) {
  constexpr int64_t kLine = 64, kChunk = 8;  // elements in 128 and 16 bytes: rows start on 128 if K is long
  constexpr size_t kAlign = 256;
  const auto round_up = [](auto value, auto to) { return (value + to - 1) / to * to; };
  Planes out{};
  for (int i = 0; i < 2; ++i) out.batch[i] = x.batch_stride[i] == 0 ? 1 : p.batch[i];
  out.rows = rows;
  out.k = p.k;
  out.ld = round_up(p.k, p.k >= 512 ? kLine : kChunk);
  out.pieces = (p.k + kPiece - 1) / kPiece;
  const int64_t matrices = out.batch[0] * out.batch[1];
  out.tiny_at = round_up(static_cast<size_t>(matrices * kPlanes * rows * out.ld) * 2, kAlign);
  out.bytes = round_up(out.tiny_at + static_cast<size_t>(matrices * rows * out.pieces), kAlign);
  return out;
}

/// True for x @ x.T: the columns of B are the rows of A, so A's planes serve as B's as well.
inline bool shares_planes(const Problem& p) {
  const auto is_same = [&p](int i) { return p.a.batch_stride[i] == p.b.batch_stride[i]; };
  return p.b_is_a_transposed && p.m == p.n && is_same(0) && is_same(1);
}

/// The bytes of the planes and flags of A's rows and of B's columns. With `shares`, B has no planes of its own. Slabs
/// of some rows and some columns must not share.
class PlanesBytes final : public CopiedBytes {
 public:
  explicit PlanesBytes(bool shares = false) : shares_(shares) {}
  size_t a(const Problem& p) const override { return planes_of(p, p.a, p.m).bytes; }
  size_t b(const Problem& p) const override { return shares_ ? 0 : planes_of(p, p.b, p.n).bytes; }

 private:
  bool shares_;
};

/// The workspace of a slab: the planes of A and of B, which of them the pass has to write, and what is left behind
/// them. Where B has no planes of its own, A's stand for them.
struct Memory {
  unsigned char *a, *b, *rest;
  Changed changed;
};
inline Memory memory_of(const Slabs& slabs, void* workspace, const Changed& changed) {
  auto* const at = static_cast<unsigned char*>(workspace);
  Memory memory{at, at + slabs.a_bytes, at + slabs.workspace(), changed};
  if (slabs.b_bytes == 0) {
    memory.b = memory.a;
    memory.changed.b = false;
  }
  return memory;
}

/// True if a kernel computes only the work tiles that touch the upper triangle of D, and stores each result to its
/// mirror image as well. Slabs of x @ x.T off the diagonal compute all of their tiles, and store the results of the
/// upper triangle twice.
inline bool is_triangle(const Problem& p, const Changed& changed = {}) {
  return p.b_is_a_transposed && p.m == p.n && changed.diagonal == 0;
}

/// An operand as a list of rows along K: the rows of A, or the columns of B.
struct Side {
  Matrix x;
  int64_t row, k_stride;
  Planes planes;
  unsigned char* memory;  // start of the planes in the workspace
};
inline Side side_a(const Problem& p, const Memory& memory) {
  Side side{};
  side.x = p.a;
  side.row = p.a.row_stride;
  side.k_stride = p.a.col_stride;
  side.planes = planes_of(p, p.a, p.m);
  side.memory = memory.a;
  return side;
}
inline Side side_b(const Problem& p, const Memory& memory) {
  Side side{};
  side.x = p.b;
  side.row = p.b.col_stride;
  side.k_stride = p.b.row_stride;
  side.planes = planes_of(p, p.b, p.n);
  side.memory = memory.b;
  return side;
}

/// Returns the problem with the rows to which its numerics refer. The order of summation depends on which operand is A.
/// A vector that is multiplied by a matrix counts as a row, as in `linear`, so a problem whose B is a vector is
/// transposed.
inline Problem by_rows(const Problem& p) {
  if (!p.b_is_vector || p.n != 1 || p.batches() != 1 || p.d.row_stride != 1) return p;
  const auto transposed = [](Matrix x) {
    std::swap(x.row_stride, x.col_stride);
    return x;
  };
  Problem q = p;
  q.m = 1;
  q.n = p.m;
  q.a = transposed(p.b);
  q.b = transposed(p.a);
  q.c = transposed(p.c);
  q.d = transposed(p.d);
  q.d.row_stride = p.m;
  return q;
}

/// The bytes that the pass reads and writes for each byte of planes.
constexpr double kPassBytes = (4.0 + 2 * kPlanes) / (2 * kPlanes);

/// The bytes that the pass reads and writes. `shares`: see PlanesBytes.
inline double pass_bytes(const Problem& p, bool shares = false) {
  const auto elements = [](const Planes& x) {
    return static_cast<double>(x.batch[0] * x.batch[1] * x.rows) * static_cast<double>(x.k);
  };
  const double of_b = shares ? 0.0 : elements(planes_of(p, p.b, p.n));
  return (elements(planes_of(p, p.a, p.m)) + of_b) * (4 + 2 * kPlanes);
}

/// True if the extents and the number of tiles fit the integer types that kernels over planes count with.
inline bool is_countable(const Problem& p, const Tile& tile, Reason* why) {
  constexpr int64_t kMaxExtent = int64_t{1} << 30, kMaxTiles = int64_t{1} << 29;
  if (p.m > kMaxExtent || p.n > kMaxExtent || p.k > kMaxExtent) {
    return refuse(why, "M, N and K must be at most 2^30, got %lld, %lld and %lld", static_cast<long long>(p.m),
                  static_cast<long long>(p.n), static_cast<long long>(p.k));
  }
  if (p.k == 0) return refuse(why, "K must be positive, got %lld", static_cast<long long>(p.k));
  const int64_t tiles = ceil_div(p.m, tile.bm) * ceil_div(p.n, tile.bn) * p.batches();
  if (tiles > kMaxTiles) return refuse(why, "needs %lld tiles, the limit is 2^29", static_cast<long long>(tiles));
  return true;
}

/// Enqueues the pass that writes the planes which memory.changed names, at the speed of memory, and sets the `count`
/// counters to zero.
HGEMM_IN_CUDA(launch_pass(const Problem& p, const Memory& memory, unsigned* counters, int count, Stream stream))

}  // namespace hgemm::tile::split
