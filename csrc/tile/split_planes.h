// Float32 operands as sums of three bfloat16 matrices (planes), and the layout of the planes in a kernel's workspace.
//
// x = x1 + x2 + x3, where each term is the bfloat16 nearest to the remainder. Three times 8 bits represent the 24 bits
// of a float32 exactly, as long as the bits of the last plane are not below the smallest bfloat16, 2^-133.
//
// Or as sums of two float16 planes: 2^e x = x1 + 2^-12 x2 to 23 bits. The power of two is a row's own. It makes the
// row's largest element at least 2^14 and less than 2^15, and x2 the float16 nearest to 2^12 times the remainder. So an
// element keeps 23 bits as long as it is not below 2^-28 of the row's largest. `Scale` says where one does not.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "core/host_device.h"
#include "core/problem.h"
#include "core/variant_list.h"
#include "tile/slabs.h"

namespace hgemm::tile::split {

constexpr int kPlanes = 3;     // of bfloat16
constexpr int kTwoPlanes = 2;  // of float16
constexpr int kLowBits = 12;   // the second float16 plane is scaled by 2 to this power
/// Elements of K in one segment of a row ("piece" in the code). A warp splits one segment, and each has one flag.
constexpr int kPiece = 256;

/// What a kernel knows of a row in two float16 planes. A sum over K of the planes' products is accurate if its
/// magnitude is at least `least` of A's row and `least` of B's column together; or else if the sum of the products'
/// magnitudes is. `least` is kNever if the row has a value that planes cannot hold at all.
///
/// A sum of few terms shows the bit that planes lack, as in x @ I, whose float32 result is exact. Rows count as such
/// where kTermsOfRows of them, those that have any, have fewer than kFewTerms in the mean. The first rows of causal
/// attention have just more.
///
/// Where all products of a sum have one sign, what the tensor core truncates of them adds up. A few large products in
/// front of many small ones, as in the product of Hilbert matrices, then lose more than float32 does.
struct Scale {
  float least;
  int8_t exponent;   // the planes hold the row times 2 to this power
  bool is_one_sign;  // of the nonzero elements, of which there are some
  uint16_t terms;    // nonzero elements, at most kManyTerms
};
constexpr float kNever = 1e38f;
constexpr int kFewTerms = 64, kTermsOfRows = 128, kManyTerms = 65535;

/// The planes of one operand, (matrices, planes, rows, ld), always K-major. Behind three planes lie flags, (matrices,
/// rows, pieces): one byte per segment of a row, nonzero if the segment is too small for planes. Behind two planes lies
/// the Scale of each row, (matrices, rows). A matrix that is broadcast is stored once.
struct Planes {
  int64_t batch[2];  // outer, inner
  int64_t rows, k, ld, pieces;
  size_t tiny_at, bytes;  // offset of the flags or scales and size of all, in bytes from the operand's start
};

inline Planes planes_of(const Problem& p, const Matrix& x, int64_t rows, int planes) {
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
  out.tiny_at = round_up(static_cast<size_t>(matrices * planes * rows * out.ld) * 2, kAlign);
  const int64_t of_row = planes == kTwoPlanes ? int64_t{sizeof(Scale)} : out.pieces;
  out.bytes = round_up(out.tiny_at + static_cast<size_t>(matrices * rows * of_row), kAlign);
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
  explicit PlanesBytes(bool shares = false, int planes = kPlanes) : shares_(shares), planes_(planes) {}
  size_t a(const Problem& p) const override { return planes_of(p, p.a, p.m, planes_).bytes; }
  size_t b(const Problem& p) const override { return shares_ ? 0 : planes_of(p, p.b, p.n, planes_).bytes; }

 private:
  bool shares_;
  int planes_;
};

/// The workspace of a slab: the planes of A and of B, which of them the pass has to write, and what is left behind
/// them. Where B has no planes of its own, A's stand for them.
///
/// `inaccurate` is a flag on the device, or null. A kernel over two planes sets it where a result is not accurate.
/// Kernels over three planes, which are launched behind it and compute all results again, leave at once where it is
/// zero.
struct Memory {
  unsigned char *a, *b, *rest;
  Changed changed;
  unsigned* inaccurate;
  bool is_first;  // of the slabs over two planes: its pass sets `inaccurate` to zero
};

/// True if a kernel over two planes has computed all results. The kernel over three planes and its pass ask so, on the
/// device.
HGEMM_HOST_DEVICE inline bool has_nothing_to_do(const unsigned* inaccurate) {
  return inaccurate != nullptr && *static_cast<const volatile unsigned*>(inaccurate) == 0;
}

inline Memory memory_of(const Slabs& slabs, void* workspace, const Changed& changed, unsigned* inaccurate = nullptr,
                        bool is_first = false) {
  auto* const at = static_cast<unsigned char*>(workspace);
  Memory memory{at, at + slabs.a_bytes, at + slabs.workspace(), changed, inaccurate, is_first};
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

/// How the rows of an operand lie in memory: as real numbers, or as those of A or of B of a complex product's real form
/// (real_form()).
enum class Parts : int32_t { kReal, kComplexA, kComplexB };

/// An operand as a list of rows along K: the rows of A, or the columns of B.
struct Side {
  Matrix x;
  int64_t row, k_stride;
  Parts parts;
  uint32_t flips;  // of kComplexB: real_form_flips()
  bool is_wide;    // every row starts on a multiple of 16 bytes
  Planes planes;
  unsigned char* memory;  // start of the planes in the workspace
};
inline Side side_a(const Problem& p, const Memory& memory, int planes = kPlanes) {
  Side side{};
  side.x = p.a;
  side.parts = p.is_real_form ? Parts::kComplexA : Parts::kReal;
  side.is_wide = alignment_a(p) == 16;
  side.row = p.a.row_stride;
  side.k_stride = p.a.col_stride;
  side.planes = planes_of(p, p.a, p.m, planes);
  side.memory = memory.a;
  return side;
}
inline Side side_b(const Problem& p, const Memory& memory, int planes = kPlanes) {
  Side side{};
  side.x = p.b;
  side.parts = p.is_real_form ? Parts::kComplexB : Parts::kReal;
  side.flips = real_form_flips(p);
  const int64_t pitch = p.is_real_form ? 2 * p.ldb() : p.ldb();
  side.is_wide = alignment_of(p.b, p.dtype, pitch, p.batch[0], p.batch[1]) == 16;
  side.row = p.b.col_stride;
  side.k_stride = p.b.row_stride;
  side.planes = planes_of(p, p.b, p.n, planes);
  side.memory = memory.b;
  return side;
}

/// Returns the real problem with the rows to which its numerics refer. The order of summation depends on which operand
/// is A. A vector that is multiplied by a matrix counts as a row, as in `linear`, so a problem whose B is a vector is
/// transposed.
inline Problem by_rows(const Problem& p) {
  if (p.dtype == DType::kC64) return real_form(p);
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
constexpr double pass_share(int planes) {
  return (4.0 + 2 * planes) / (2 * planes);
}

/// The bytes that the pass reads and writes. `shares`: see PlanesBytes.
inline double pass_bytes(const Problem& p, bool shares = false, int planes = kPlanes) {
  const auto elements = [](const Planes& x) {
    return static_cast<double>(x.batch[0] * x.batch[1] * x.rows) * static_cast<double>(x.k);
  };
  const double of_b = shares ? 0.0 : elements(planes_of(p, p.b, p.n, planes));
  const double read_of_b = p.is_real_form ? 2.0 : 4.0;  // bytes: two rows of the planes are made of each complex column
  return elements(planes_of(p, p.a, p.m, planes)) * (4.0 + 2 * planes) + of_b * (read_of_b + 2 * planes);
}

/// True unless the problem is a complex one that kernels over planes do not take. They add up elements (i, j) and (j,
/// i) of a complex x @ x.T in different orders.
inline bool takes_if_complex(const Problem& p, Reason* why) {
  constexpr int kElement = 8;
  if (p.dtype != DType::kC64) return true;
  if (p.b_is_a_transposed) return refuse(why, "%s", "x @ x.T would not be symmetric to the bit");
  if (p.b_is_vector) return refuse(why, "%s", "complex matrix-vector products are not supported");
  if (p.act != Activation::kNone || p.pre_activation != nullptr) {
    return refuse(why, "%s", "complex results have no activation");
  }
  const int alignment = alignments_of(p).least();
  return alignment >= kElement || refuse(why, "complex elements must be %d-byte aligned, got %d", kElement, alignment);
}

/// Enqueues the pass that writes the planes which memory.changed names, at the speed of memory, and sets the `count`
/// counters to zero.
HGEMM_IN_CUDA(launch_pass(const Problem& p, const Memory& memory, unsigned* counters, int count, Stream stream))

/// The same for two float16 planes.
HGEMM_IN_CUDA(launch_scaled_pass(const Problem& p, const DeviceFacts& facts, const Memory& memory, unsigned* counters,
                                 int count, Stream stream))

}  // namespace hgemm::tile::split
