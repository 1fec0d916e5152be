// What the list of skinny kernels (skinny.cc) and their CUDA side share: configurations, how a problem is seen and
// scheduled, launchers.
#pragma once

#include "core/problem.h"

namespace hgemm::skinny {

/// One line of configs_skinny.inc.
template <int COLS_, int WARPS_, int DEPTH_K_, int DEPTH_MN_>
struct Config {
  static constexpr int COLS = COLS_, WARPS = WARPS_;
  static constexpr int kDepthK = DEPTH_K_, kDepthMN = DEPTH_MN_;
  static constexpr int kThreads = 32 * WARPS;
  static_assert(WARPS % 8 == 0, "unaligned, MN-major: a warp for each k modulo 8");
};

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

/// How W is cut: into tiles of `tile_rows` rows, each into `splits` slices of K. Where rows of an unaligned K-major W
/// start on 16 bytes is the same for every eighth: `interleaved` tiles hold such rows, eight tiles a neighbourhood.
struct Schedule {
  int tile_rows, tiles, splits;
  bool interleaved;
  bool dependent;     // the device has clusters and programmatic dependent launch
  bool hurries_next;  // the next kernel may start before this one's blocks have all ended
};

/// Enqueues the GEMM.
#define SKINNY(COLS, WARPS, DEPTH_K, DEPTH_MN, RATE)                 \
  Status launch_f16_##COLS(const Problem&, const Schedule&, Stream); \
  Status launch_bf16_##COLS(const Problem&, const Schedule&, Stream);
#include "kernels/configs_skinny.inc"
#undef SKINNY

}  // namespace hgemm::skinny
