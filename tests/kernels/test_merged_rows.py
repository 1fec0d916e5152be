"""How the tiles of a kernel take the rows of a batch's matrices, without a GPU."""

from __future__ import annotations

from pathlib import Path

from native_check import counts, needs_compiler

# Follows each row of each tile as the kernel does: TMA loads it from A, and the epilogue stores it to D.
CHECK = r"""
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "kernels/sm90_wgmma/merged_rows.h"

using namespace hgemm;
using namespace hgemm::sm90_wgmma;

long flat = 0, boxes = 0, partial = 0;

/// `row_stride`, `matrix_stride`: of A. `rows_are_batch`: D has the memory order of a permuted view.
void check(int64_t m, int64_t batch, int64_t row_stride, int64_t matrix_stride, bool rows_are_batch, int bm) {
  const auto require = [&](bool ok, const char* what) {
    if (ok) return;
    std::printf("%lld rows of %lld matrices, strides %lld and %lld, tiles of %d rows: %s\n", static_cast<long long>(m),
                static_cast<long long>(batch), static_cast<long long>(row_stride),
                static_cast<long long>(matrix_stride), bm, what);
    std::exit(1);
  };
  Problem p;
  p.m = m;
  p.k = 8;
  p.n = 24;
  p.batch[1] = batch;
  p.a.row_stride = row_stride;
  p.a.col_stride = 1;
  p.a.batch_stride[1] = matrix_stride;
  p.c.row_stride = 5;
  p.c.batch_stride[1] = 7777;
  p.d.row_stride = rows_are_batch ? batch * p.n : p.n;
  p.d.batch_stride[1] = rows_are_batch ? p.n : m * p.n;
  require(shares_b(p), "refused");
  const MergedRows merged = merged_rows_of(p, bm);
  require(merged.tiles == merged_tiles(p, bm), "two counts of tiles");
  require(merged.tiles >= ceil_div(m * batch, bm), "too few tiles");
  require(merged.tiles <= ceil_div(m, bm) * batch, "more tiles than one matrix after the other");
  require(merged.loaded_rows <= bm && (merged.is_flat || merged.rows <= bm), "a box that is larger than the tile");
  ++(merged.is_flat ? flat : boxes);
  std::vector<int> done(static_cast<size_t>(m * batch));
  for (uint32_t tile = 0; tile <= merged.tiles; ++tile) {  // and one beyond, as the last cluster may have
    const int m0 = merged.is_flat ? static_cast<int>(tile) * bm : 0;
    const MergedRows::Place first = merged.is_flat ? MergedRows::Place{0, 0} : merged.first_of(tile);
    for (int r = 0; r < bm; ++r) {
      const int row = m0 + r;
      const MergedRows::Place at = merged.place_of(row, first);
      if (!merged.has(row, at)) {
        partial += tile < merged.tiles;
        continue;
      }
      require(tile < merged.tiles, "a row beyond the last tile");
      require(r < merged.loaded_rows, "a row that is not loaded");
      const bool by_row = merged.d_fast == p.d.batch_stride[1] && merged.fast == batch && merged.slow == m &&
                          merged.c_fast == p.c.batch_stride[1];
      const int64_t i = by_row ? at.slow : at.fast, matrix = by_row ? at.fast : at.slow;
      require(at.fast >= 0 && at.slow >= 0 && i < m && matrix < batch, "no such row");
      ++done[static_cast<size_t>(matrix * m + i)];
      // The box: its first coordinates are those of the tile, and its rows lie one after the other in shared memory.
      int64_t loaded = (m0 + first.fast + r) * merged.a_pitch;
      if (!merged.is_flat) {
        loaded = (first.fast + r % merged.box_fast) * merged.a_pitch +
                 (first.slow + r / merged.box_fast) * matrix_stride;
      }
      require(loaded == i * row_stride + matrix * matrix_stride, "another row of A");
      require(at.fast * merged.d_fast + at.slow * merged.d_slow ==
                  i * p.d.row_stride + matrix * p.d.batch_stride[1], "another row of D");
      require(at.fast * merged.c_fast + at.slow * merged.c_slow ==
                  i * p.c.row_stride + matrix * p.c.batch_stride[1], "another row of C");
    }
    const int beyond = (1 << 30) + bm - 1;  // the rehearsal of a pingpong kernel
    require(!merged.has(beyond, merged.place_of(beyond, first)), "the rehearsal stores rows");
  }
  for (int times : done) require(times == 1, "a row is left out or done twice");
}

int main() {
  for (int bm : {64, 128}) {
    for (int64_t m : {1, 2, 3, 7, 8, 16, 17, 31, 63, 64, 65, 100, 127, 128, 129, 190, 300, 1001}) {
      for (int64_t batch : {2, 3, 5, 16, 33, 64, 129, 500}) {
        for (bool rows_are_batch : {false, true}) {
          check(m, batch, 8, 8 * m, rows_are_batch, bm);                 // contiguous
          check(m, batch, 8 * batch, 8, rows_are_batch, bm);             // a permuted view
          check(m, batch, 16, 16 * m, rows_are_batch, bm);               // columns of a larger matrix
          check(m, batch, 8, 8 * m + 24, rows_are_batch, bm);            // rows of larger matrices
          check(m, batch, 8 * batch + 40, 8, rows_are_batch, bm);        // the same, permuted
        }
      }
    }
  }
  std::printf("%ld %ld %ld\n", flat, boxes, partial);
}
"""


@needs_compiler
def test_every_row_is_computed_once_where_a_and_d_have_it(tmp_path: Path) -> None:
    flat, boxes, partial = counts(CHECK, tmp_path, "core/problem.cc")
    assert flat > 500 and boxes > 500 and partial > 10_000
