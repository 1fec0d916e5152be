// What the host side of tiny_batch (list.h, variants.cc) and its CUDA side share: configurations, how a batch is cut
// into chunks, how the matrices of a chunk lie in shared memory, the launcher. Plain C++: all of it is decided on the
// host.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/chip.h"
#include "core/host_device.h"
#include "core/problem.h"

namespace hgemm::tiny_batch {

constexpr int kMostExtent = 32;  // of M, N and K
/// Of a vector times a matrix: extents, and bytes of the matrix, which lies in shared memory.
constexpr int kMostOfVector = 256, kMostMatrixBytes = 16 * 1024;
constexpr int kMostThreads = 128;  // of a block
/// Shared memory that a block takes if a single matrix does not need more: eight blocks fit on an SM.
constexpr int kChunkBytes = 26 * 1024;
/// A last matrix and the rounding of three operands come on top.
constexpr int kMostSmemBytes = kChunkBytes + 1024;
constexpr int kSlackBytes = 32;  // behind an operand: a tile's last columns may lie beyond the matrix

/// Elements that threads access at a time in shared memory, where they are aligned.
HGEMM_HOST_DEVICE constexpr int group_of(int element_bytes) {
  return element_bytes == 8 ? 2 : 4;
}

/// A thread computes a tile of TM x TN results, loading K_STEP k at a time, or two where elements have 8 bytes. WHOLE:
/// the tile is the product, K is TM as well, and registers hold all of it. BLOCKS: of kMostThreads, that an SM's
/// registers are cut for. BLOCKS_OF_8: the same for elements of 8 bytes; 0: the kernel does not take them.
template <int TM_, int TN_, int K_STEP_, bool WHOLE_, int BLOCKS_, int BLOCKS_OF_8_>
struct Config {
  static constexpr int TM = TM_, TN = TN_, K_STEP = K_STEP_, BLOCKS = BLOCKS_, BLOCKS_OF_8 = BLOCKS_OF_8_;
  static constexpr bool WHOLE = WHOLE_;
  static_assert(TM >= 1 && TN >= 1 && TM <= 8 && TN <= 8, "the tile lies in registers");
  static_assert(WHOLE ? TM == TN : TM % 4 == 0 && TN % 4 == 0, "rows are read in groups of four elements");
  static_assert(4 % K_STEP == 0, "a step is a part of a group");
};

/// The same as values.
struct Shape {
  int tm, tn;
  bool whole;
  int blocks;
};

/// How a chunk's matrices get from global into shared memory, or back.
enum class Copy : int32_t {
  kFlat,    // the chunk is one piece of global memory, and lies in shared memory as it does there
  kPadded,  // it is one piece of global memory, and padding follows every run in shared memory
  kRuns     // run by run
};

/// Where the matrices of an operand, or of D, lie. `runs` of `run` elements each, `ld` apart, are a matrix.
struct Layout {
  Copy copy = Copy::kFlat;
  int piece = 16;        // bytes of a copy, unless kFlat
  bool wide = false;     // groups of elements are aligned in shared memory
  bool shared = false;   // one matrix serves the whole batch
  bool is_near = false;  // batch stride batch[1] alone, and a chunk's offsets fit in 31 bits
  int run = 0, runs = 0;
  int matrix = 0;                       // elements
  int64_t ld = 0, batch[2] = {0, 0};    // elements, in global memory
  int row_pitch = 0, matrix_pitch = 0;  // elements, in shared memory
};

/// What place() is to arrange. A matrix has `rows` rows of `cols` contiguous elements.
struct Wanted {
  int cols, rows;
  int element_bytes;
  bool wide;             // threads access groups of elements
  bool across_matrices;  // neighbouring threads access the same element of neighbouring matrices
  bool across_rows;      // neighbouring threads access the same column of neighbouring rows
};

/// Lays out an operand so that neighbouring threads meet few bank conflicts: what they access lies an odd multiple of
/// 16 bytes apart, or of less where a flat copy leaves it so. A copy of four bytes costs as much as one of 16.
inline Layout place(const Matrix& x, int64_t ld, const int64_t (&batch)[2], const Wanted& w) {
  constexpr int kPad = 16;
  const int bytes = w.element_bytes, matrix = w.cols * w.rows;
  Layout l{};
  l.wide = w.wide;
  l.matrix = matrix;
  uint64_t bits = 16 | reinterpret_cast<uintptr_t>(x.data);
  l.shared = true;
  for (int i = 0; i < 2; ++i) {
    l.batch[i] = batch[i] > 1 ? x.batch_stride[i] : 0;
    l.shared = l.shared && l.batch[i] == 0;
  }
  const bool is_packed = w.rows == 1 || ld == w.cols;
  const bool is_linear =
      is_packed &&
      (l.shared || ((batch[1] == 1 || l.batch[1] == matrix) && (batch[0] == 1 || l.batch[0] == matrix * batch[1])));
  const bool pads_rows = w.wide && w.across_rows && !w.across_matrices && w.cols * bytes % (2 * kPad) == 0;
  const bool pads_matrices = w.across_matrices && !l.shared && matrix * bytes % (2 * kPad) == 0;
  const bool is_aligned = !w.wide || reinterpret_cast<uintptr_t>(x.data) % (group_of(bytes) * bytes) == 0;
  if (matrix == 0) {  // K = 0: there is nothing to copy, and the pointer may be null
    l.runs = 1;
    return l;
  }
  l.row_pitch = w.cols + (pads_rows ? kPad / bytes : 0);
  l.matrix_pitch = l.shared ? 0 : l.row_pitch * w.rows + (pads_matrices ? kPad / bytes : 0);
  if (is_linear && !pads_rows && !pads_matrices && is_aligned) {
    l.copy = Copy::kFlat;
    l.run = matrix;
    l.runs = 1;
    return l;
  }
  l.copy = is_linear ? Copy::kPadded : Copy::kRuns;
  const bool by_rows = pads_rows || !is_packed;
  l.run = by_rows ? w.cols : matrix;
  l.runs = by_rows ? w.rows : 1;
  l.ld = l.runs > 1 ? ld : 0;
  if (!is_linear) bits |= static_cast<uint64_t>(l.batch[0] | l.batch[1] | l.ld) * bytes;
  bits |= static_cast<uint64_t>(l.run | (l.runs > 1 ? l.row_pitch : 0) | l.matrix_pitch) * bytes;
  const int alignment = static_cast<int>(bits & (~bits + 1));
  l.piece = alignment == 16 ? 16 : alignment >= 4 && bytes <= 4 ? 4 : bytes;
  return l;
}

/// Bytes of shared memory for `problems` matrices of `used` elements each.
constexpr int region_bytes(const Layout& l, int used, int element_bytes, int problems) {
  const int elements = l.shared ? used : l.matrix_pitch * problems;
  return (elements * element_bytes + 16 + kSlackBytes + 15) / 16 *
         16;  // a flat copy starts as far from 16 as its source
}

/// Everything about a launch but its pointers.
struct Schedule {
  Layout a, b, d;
  int tiles_m, tiles_n;  // of a product
  int a_apart, b_apart;  // rows of A, columns of B between those of a tile
  int problems;          // of a block
  int64_t blocks;
  int threads;
  int b_at, d_at, smem_bytes;  // in shared memory
  bool across_matrices;        // neighbouring threads take neighbouring matrices, otherwise tiles
  bool plain;                  // D = alpha * A @ B; otherwise unrounded sums pass through the general epilogue
  bool linear;                 // C, if any, and D are one piece of memory each, in the same order
  bool dependent;
};

/// Whether a kernel of this shape can compute the problem.
inline bool fits(const Problem& p, const Shape& shape) {
  if (shape.whole) return p.m == shape.tm && p.n == shape.tm && p.k == shape.tm;
  if (p.m <= kMostExtent && p.n <= kMostExtent && p.k <= kMostExtent) return true;
  const int64_t cols = std::max(p.m, p.n);
  // torch adds long float32 sums up in several chains, with a smaller error. Rounding to 16 bits hides the difference.
  if (!p.is_half() && p.k > kMostExtent) return false;
  return std::min(p.m, p.n) == 1 && std::max(cols, p.k) <= kMostOfVector &&
         cols * p.k * dtype_bytes(p.dtype) <= kMostMatrixBytes;
}

inline Schedule schedule(const Problem& p, const DeviceFacts& facts, const Shape& shape) {
  const int m = static_cast<int>(p.m), n = static_cast<int>(p.n), k = static_cast<int>(p.k);
  const int bytes = dtype_bytes(p.dtype);
  const bool a_is_k_major = p.a_major() == Major::kK, b_is_k_major = p.b_major() == Major::kK;
  Schedule s{};
  s.tiles_m = (m + shape.tm - 1) / shape.tm;
  s.tiles_n = (n + shape.tn - 1) / shape.tn;
  const int tiles = s.tiles_m * s.tiles_n;
  s.across_matrices = tiles * 32 <= kMostThreads;
  // Rows along which neighbouring threads do not lie are a tile's one after the other; others are interleaved.
  s.a_apart = a_is_k_major ? s.tiles_m : 1;
  s.b_apart = b_is_k_major ? s.tiles_n : 1;
  const bool has_c = p.c.data != nullptr && p.beta != 0.0f;
  s.plain = !has_c && p.bias == nullptr && p.act == Activation::kNone && p.pre_activation == nullptr;

  const auto operand = [&](const Matrix& x, int64_t ld, bool is_k_major, int outer) {
    Wanted w{};
    w.cols = is_k_major ? k : outer;
    w.rows = is_k_major ? outer : k;
    w.element_bytes = bytes;
    w.wide = (shape.whole ? w.cols * w.rows : w.cols) % group_of(bytes) == 0;
    w.across_matrices = s.across_matrices;
    w.across_rows = is_k_major;
    return place(x, ld, p.batch, w);
  };
  s.a = operand(p.a, p.lda(), a_is_k_major, m);
  s.b = operand(p.b, p.ldb(), b_is_k_major, n);
  const int out_bytes = s.plain ? dtype_bytes(p.out_dtype) : std::max(bytes, 4);
  const auto output = [&](const Matrix& x, int64_t ld, int element_bytes) {
    Wanted w{};
    w.cols = n;
    w.rows = m;
    w.element_bytes = element_bytes;
    const int group = group_of(element_bytes);
    w.wide = shape.whole ? m * n % group == 0 : n % group == 0 && s.b_apart == 1;
    w.across_matrices = s.across_matrices;
    return place(x, ld, p.batch, w);
  };
  s.d = output(p.d, p.d.row_stride, out_bytes);
  if (!s.plain) {
    const auto is_linear = [&](const Matrix& x) {
      return (m == 1 || x.row_stride == n) && (n == 1 || x.col_stride == 1) &&
             (p.batch[1] == 1 || x.batch_stride[1] == m * n) &&
             (p.batch[0] == 1 || x.batch_stride[0] == m * n * p.batch[1]);
    };
    s.linear =
        is_linear(p.d) && (!has_c || is_linear(p.c)) && p.act == Activation::kNone && p.pre_activation == nullptr;
  }

  const int used_a = s.a.row_pitch * (a_is_k_major ? m : k), used_b = s.b.row_pitch * (b_is_k_major ? n : k);
  const auto cut = [&](int problems) {
    s.problems = problems;
    s.b_at = region_bytes(s.a, used_a, bytes, problems);
    s.d_at = s.b_at + region_bytes(s.b, used_b, bytes, problems);
    s.smem_bytes = s.d_at + region_bytes(s.d, m * n, out_bytes, problems);
  };
  // As many problems as threads have tiles for and shared memory has room for, but all SMs are to have some, and a warp
  // is to have work.
  cut(1);
  const int fixed = s.smem_bytes;
  cut(9);
  const int each = std::max(1, (s.smem_bytes - fixed) / 8);
  const int most = std::min(std::max(1, kMostThreads / tiles), std::max(1, (kChunkBytes - fixed) / each + 1));
  const int64_t spread =
      std::max<int64_t>((p.batches() + 4 * facts.sm_count - 1) / (4 * facts.sm_count), (32 + tiles - 1) / tiles);
  const auto problems = static_cast<int>(std::min({int64_t{most}, spread, std::max<int64_t>(p.batches(), 1)}));
  cut(problems > 8 ? problems / 8 * 8 : problems);  // chunks of packed matrices start on 16 bytes
  s.blocks = (p.batches() + s.problems - 1) / s.problems;
  // More threads than tiles where there is much to copy.
  const int copies = std::min(s.d_at / 16 / 8, 64);
  s.threads = std::clamp((std::max(s.problems * tiles, copies) + 31) / 32 * 32, 32, kMostThreads);
  for (Layout* l : {&s.a, &s.b, &s.d}) {
    l->is_near = (p.batch[0] == 1 || l->shared) &&
                 (s.problems * l->batch[1] + l->runs * l->ld + l->run) * 4 < (int64_t{1} << 31);
  }
  s.dependent = has_dependent_launch(facts.cc);
  return s;
}

/// Enqueues the products. launch.cuh defines it, instances.cu instantiates it for each kernel of list.h.
template <class Config, DType kDType>
Status launch(const Problem& p, const Schedule& s, Stream stream);

}  // namespace hgemm::tiny_batch
