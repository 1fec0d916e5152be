// Merged (config.h): the order in which the rows of a batch's matrices are computed as the rows of one matrix.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/ceil_div.h"
#include "core/fast_divisor.h"
#include "core/host_device.h"
#include "core/problem.h"

namespace hgemm::sm90_wgmma {

/// The order in which tiles take the rows of the matrices along the inner batch dimension. A row has two indices, its
/// row in the matrix and its matrix. `fast` is the one that changes from one row of a tile to the next, `slow` the
/// other one.
///
/// Where one stride leads through all rows of A in memory, they are flat: a tile takes the next BM of them. For
/// instance, x.transpose(0, 1) of a contiguous x (S, B, K) is flat, with the matrix as the fast index. Otherwise each
/// tile is a box of `box_fast` rows of `box_slow` matrices, which is also the box that TMA loads. Example: with 17 rows
/// in each matrix a tile of 128 rows is a box of 17 rows of seven matrices, and leaves nine of its rows without use.
struct MergedRows {
  int64_t d_fast, d_slow, c_fast, c_slow;  // the strides of D and C
  int64_t a_pitch;                         // flat: the stride of A from one row to the next
  int fast, slow;                          // extents
  int box_fast, box_slow;                  // not flat; box_fast * box_slow <= BM
  int rows;                                // flat: all rows. Otherwise: those of a tile
  int loaded_rows;                         // of A for a tile
  uint32_t tiles;                          // rows of tiles
  bool is_flat;
  FastDivisor line;        // flat: `fast`. Otherwise: box_fast
  FastDivisor tiles_fast;  // not flat: tiles along the fast index

  /// The place of a row.
  struct Place {
    int fast, slow;
  };

  /// The place of the first row of tile `tile`, unless flat. Beyond the last tile it is beyond the last matrix.
  HGEMM_HOST_DEVICE Place first_of(uint32_t tile) const {
    const uint32_t slow = tiles_fast.quotient(tile), fast = tile - slow * tiles_fast.divisor();
    return {static_cast<int>(fast) * box_fast, static_cast<int>(slow) * box_slow};
  }
  /// The place of row `row`, which counts from `first` on: from the first row of the tile or, where rows are flat, of
  /// all tiles.
  HGEMM_HOST_DEVICE Place place_of(int row, Place first) const {
    const uint32_t slow = line.quotient(static_cast<uint32_t>(row));
    return {first.fast + row - static_cast<int>(slow * line.divisor()), first.slow + static_cast<int>(slow)};
  }
  /// Whether `row`, whose place is `at`, is a row of a matrix.
  HGEMM_HOST_DEVICE bool has(int row, Place at) const { return row < rows && at.fast < fast && at.slow < slow; }
};

/// Whether a Merged kernel can run the problem: B does not vary along the inner batch dimension, and a K-major A does.
inline bool shares_b(const Problem& p) {
  constexpr int64_t kMostRows = int64_t{1} << 30;  // rows are counted in 32 bits
  return p.batch[1] > 1 && p.b.batch_stride[1] == 0 && p.a.batch_stride[1] != 0 && p.a_major() == Major::kK &&
         p.m > 0 && p.m <= kMostRows / p.batch[1];
}

/// A box of rows of several matrices, and how many of them cover all rows.
struct MergedBox {
  int fast, slow;
  int64_t tiles;
};
/// The box that needs the fewest tiles, among those that cut the rows of a matrix into the least number of parts, or
/// into up to 15 more. Over random extents that takes 4 % more tiles than all rows would fill.
inline MergedBox merged_box(int64_t fast, int64_t slow, int bm) {
  constexpr int64_t kMostBoxes = 16;
  MergedBox best{};
  for (int64_t across = ceil_div(fast, bm), i = 0; i < kMostBoxes && across <= fast; ++across, ++i) {
    const int64_t rows = ceil_div(fast, across), matrices = std::min(bm / rows, slow);
    const int64_t tiles = ceil_div(fast, rows) * ceil_div(slow, matrices);
    if (i == 0 || tiles < best.tiles) best = {static_cast<int>(rows), static_cast<int>(matrices), tiles};
  }
  return best;
}

/// Whether one stride leads through all rows of a K-major A, first through those of a matrix, or first through the
/// matrices.
inline bool is_flat_by_matrix(const Problem& p) {
  return p.a.batch_stride[1] == p.m * p.a.row_stride;
}
inline bool is_flat_by_row(const Problem& p) {
  return p.a.row_stride == p.batch[1] * p.a.batch_stride[1] && p.a.batch_stride[1] >= p.k;
}

/// The number of rows of tiles of `bm` rows for each index of the outer batch dimension.
inline int64_t merged_tiles(const Problem& p, int bm) {
  if (is_flat_by_matrix(p) || is_flat_by_row(p)) return ceil_div(p.m * p.batch[1], bm);
  return merged_box(p.m, p.batch[1], bm).tiles;
}

inline MergedRows merged_rows_of(const Problem& p, int bm) {
  const bool by_row = !is_flat_by_matrix(p) && is_flat_by_row(p);
  const int64_t fast = by_row ? p.batch[1] : p.m, slow = by_row ? p.m : p.batch[1];
  MergedRows merged{};
  merged.d_fast = by_row ? p.d.batch_stride[1] : p.d.row_stride;
  merged.d_slow = by_row ? p.d.row_stride : p.d.batch_stride[1];
  merged.c_fast = by_row ? p.c.batch_stride[1] : p.c.row_stride;
  merged.c_slow = by_row ? p.c.row_stride : p.c.batch_stride[1];
  merged.a_pitch = by_row ? p.a.batch_stride[1] : p.a.row_stride;
  merged.fast = static_cast<int>(fast);
  merged.slow = static_cast<int>(slow);
  merged.is_flat = by_row || is_flat_by_matrix(p);
  if (merged.is_flat) {
    merged.rows = static_cast<int>(fast * slow);
    merged.loaded_rows = bm;
    merged.tiles = static_cast<uint32_t>(ceil_div(fast * slow, bm));
    merged.line = FastDivisor(static_cast<uint32_t>(fast));
  } else {
    const MergedBox box = merged_box(fast, slow, bm);
    merged.box_fast = box.fast;
    merged.box_slow = box.slow;
    merged.rows = merged.loaded_rows = box.fast * box.slow;
    merged.tiles = static_cast<uint32_t>(box.tiles);
    merged.line = FastDivisor(static_cast<uint32_t>(box.fast));
    merged.tiles_fast = FastDivisor(static_cast<uint32_t>(ceil_div(fast, box.fast)));
  }
  return merged;
}

}  // namespace hgemm::sm90_wgmma
