// Slabs: the parts of a problem whose operands' copies fit the workspace together.
//
// Some kernels read copies of their operands, padded ones (tile/pad.h) or bfloat16 planes (tile/split_planes.h). Where
// the copies of whole operands exceed Problem::most_workspace, the kernel runs once for each slab: some matrices of the
// batch, or of one matrix some rows of A and some columns of B. All slabs use the same workspace, one after the other
// on the stream. K is divided only by slabs_of_k(). All other slabs sum their elements as the whole problem would.
//
//            columns of B                 for each slab of columns      (its copy is made once)
//          ┌──────┬──────┐                  for each slab of rows       (back and forth)
//  rows    │ 3    │ 4    │                    copy what changed, then multiply
//  of A    ├──────┼──────┤
//          │ 2    │ 5    │                or the same with rows and columns exchanged
//          ├──────┼──────┤
//          │ 1    │ 6    │
//          └──────┴──────┘
//
// The inner loop goes back and forth, so that the copy that was made last serves the first slab of the next turn: here
// the copy of the first rows is made once for slabs 3 and 4. The first turn runs backwards, and so ends with a full
// slab, because the last one may be smaller.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/problem.h"
#include "core/variant_list.h"

namespace hgemm::tile {

/// The bytes of the copies that a kernel reads instead of A and B, 0 for an operand that it reads in place. They must
/// not shrink where the problem grows.
class CopiedBytes {
 public:
  virtual size_t a(const Problem& p) const = 0;
  virtual size_t b(const Problem& p) const = 0;

 protected:
  ~CopiedBytes() = default;
};

/// What the choice of slabs needs to know of a kernel.
struct SlabCost {
  int64_t tile_m, tile_n;  // rows and columns of a work tile: of a block, or of a cluster
  int64_t at_once;         // work tiles that run at the same time
  double gemm_us;          // the time of the whole problem in one slab, without its copies
  double us_per_byte;      // to write a byte of a copy
  double launch_us;        // of both kernels of a slab
};

struct Slabs {
  /// The number of slabs. 0: not even the thinnest slab fits, and the other fields mean nothing.
  int64_t count = 0;

  /// The extents of a slab. The last slab along a dimension may be smaller.
  int64_t batch[2] = {1, 1}, m = 0, n = 0, k = 0;

  /// True: the loop over rows is the inner one. False: the loop over columns is.
  bool rows_inside = true;

  /// Bytes of the workspace for the copies of A, and behind them for the copies of B.
  size_t a_bytes = 0, b_bytes = 0;

  /// The predicted time that the slabs take beyond the whole problem in one slab.
  double extra_us = 0;

  size_t workspace() const { return a_bytes + b_bytes; }
};

/// The whole problem as one slab, whatever its copies take.
Slabs one_slab(const Problem& p, const CopiedBytes& bytes);

/// Divides a problem into the slabs with the least predicted time whose copies take at most `limit` bytes. Slabs begin
/// at multiples of 8 rows and columns, so their operands are aligned as the whole ones are.
Slabs slabs_of(const Problem& p, size_t limit, const SlabCost& cost, const CopiedBytes& bytes);

/// Whether slabs_of() finds slabs: the copies of the thinnest slab take at most `limit` bytes.
bool any_slab_fits(const Problem& p, size_t limit, const CopiedBytes& bytes);

/// Divides K alone, into parts whose copies take at most `limit` bytes: the first slab computes D from the first part
/// of K, and each further one adds its product to D. Only for problems whose D is float32 and whose summation order may
/// be any, in a single matrix. Sets no extra_us.
Slabs slabs_of_k(const Problem& p, size_t limit, const CopiedBytes& bytes);

/// one_slab() where it takes at most `limit` bytes, else slabs_of(); only then is `cost_of()` called.
template <class CostOf>
Slabs fewest_slabs(const Problem& p, size_t limit, const CopiedBytes& bytes, const CostOf& cost_of) {
  const Slabs whole = one_slab(p, bytes);
  return whole.workspace() <= limit ? whole : slabs_of(p, limit, cost_of(), bytes);
}

/// Returns true if there are slabs that fit; otherwise refuses.
inline bool fit_workspace(bool are_slabs, const Problem& p, Reason* why) {
  return are_slabs ||
         refuse(why, "needs copies of A and B, and even those of the thinnest slabs exceed %lld bytes of workspace",
                static_cast<long long>(p.most_workspace));
}

inline bool fit_workspace(const Slabs& slabs, const Problem& p, Reason* why) {
  return fit_workspace(slabs.count > 0, p, why);
}

/// The part of a problem that starts at this matrix, row and column, with the extents of `slabs` or what is left.
Problem part_of(const Problem& p, const Slabs& slabs, int64_t outer, int64_t inner, int64_t row, int64_t col);

/// The part of a problem over `k` elements of K from `first` on, which adds to D unless it is the first one.
Problem part_of_k(const Problem& p, int64_t first, int64_t k);

/// Which copies a slab needs that the slab before it has not left in the workspace.
struct Changed {
  bool a = true, b = true;
  int64_t diagonal = 0;  // the slab's first row less its first column
};

/// Calls `launch(part, changed)` for each slab in order, up to the first one that fails, and returns the last status.
template <class Launch>
Status for_each_slab(const Problem& whole, const Slabs& slabs, const Launch& launch) {
  if (slabs.count == 1) return launch(whole, Changed{});
  const int64_t outside = slabs.rows_inside ? whole.n : whole.m, inside = slabs.rows_inside ? whole.m : whole.n;
  const int64_t outside_step = slabs.rows_inside ? slabs.n : slabs.m;
  const int64_t inside_step = slabs.rows_inside ? slabs.m : slabs.n;
  const int64_t last = (ceil_div(inside, inside_step) - 1) * inside_step;
  const void *a_before = nullptr, *b_before = nullptr;
  int64_t m_before = 0, n_before = 0;
  bool is_backward = true;
  for (int64_t k = 0; k < whole.k; k += slabs.k) {
    const Problem p = slabs.k < whole.k ? part_of_k(whole, k, slabs.k) : whole;
    for (int64_t outer = 0; outer < p.batch[0]; outer += slabs.batch[0]) {
      for (int64_t inner = 0; inner < p.batch[1]; inner += slabs.batch[1]) {
        for (int64_t x = 0; x < outside; x += outside_step, is_backward = !is_backward) {
          for (int64_t forward = 0; forward < inside; forward += inside_step) {
            const int64_t y = is_backward ? last - forward : forward;
            const int64_t row = slabs.rows_inside ? y : x, col = slabs.rows_inside ? x : y;
            const Problem part = part_of(p, slabs, outer, inner, row, col);
            // An operand that is broadcast over the batch has the same address, and the same copy, in each slab.
            const Changed changed{part.a.data != a_before || part.m != m_before,
                                  part.b.data != b_before || part.n != n_before, row - col};
            a_before = part.a.data, b_before = part.b.data, m_before = part.m, n_before = part.n;
            if (const Status e = launch(part, changed)) return e;
          }
        }
      }
    }
  }
  return 0;
}

}  // namespace hgemm::tile
