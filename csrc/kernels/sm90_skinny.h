// What the list of sm90_skinny kernels (sm90_skinny.cc) and their CUDA side share: configurations, how a problem is
// seen and scheduled, launchers.
#pragma once

#include "core/problem.h"

namespace hgemm::sm90_skinny {

/// One line of configs_sm90_skinny.inc.
template <int COLS_, int PANELS_, int RING_>
struct Config {
  static constexpr int COLS = COLS_, PANELS = PANELS_;
  static constexpr int BK = 64 * PANELS;
  static constexpr int kThreads = 5 * 32;  // a warpgroup that multiplies, a warp that loads
  static constexpr int kMaxStages = 32;
  static constexpr int kRingBytes = RING_ * 1024;
  static constexpr int kSmemBytes = kRingBytes + 2 * kMaxStages * 8;
  static constexpr int kSumStride = 64 + 4;  // floats; the pad keeps the fragment stores conflict-free
  static_assert(COLS * kSumStride * 4 <= kRingBytes);
  static_assert(2 * PANELS * (COLS + 64) * 128 <= kRingBytes, "one stage is read, the others are in flight");
};

constexpr int kTileRows = 64;  // of W, at most

/// D^T = W x^T: W the long operand, (rows, k), x the short one, (cols, k).
struct Roles {
  bool swapped;  // W is A, not B
  const Matrix *w, *x;
  Major w_major, x_major;
  int64_t rows, cols, ldw, ldx;
};

inline Roles roles_of(const Problem& p) {
  if (p.m <= p.n) return {false, &p.b, &p.a, p.b_major(), p.a_major(), p.n, p.m, p.ldb(), p.lda()};
  return {true, &p.a, &p.b, p.a_major(), p.b_major(), p.m, p.n, p.lda(), p.ldb()};
}

/// How W is cut: into tiles of `tile_rows` rows, each into `splits` slices of K.
struct Schedule {
  int tile_rows;  // a multiple of 8, at most kTileRows
  int tiles, splits;
};

/// Enqueues the GEMM.
#define SM90_SKINNY(COLS, PANELS, RING, RATE)                        \
  Status launch_f16_##COLS(const Problem&, const Schedule&, Stream); \
  Status launch_bf16_##COLS(const Problem&, const Schedule&, Stream);
#include "kernels/configs_sm90_skinny.inc"
#undef SM90_SKINNY

}  // namespace hgemm::sm90_skinny
