// The raster order of x @ x.T: of a square result only the work tiles that touch the upper triangle, with batches. What
// such a kernel stores of a tile it also stores to the mirror image.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/fast_divisor.h"
#include "core/host_device.h"
#include "tile/raster.h"

namespace hgemm::tile {

/// Panels of `group` rows of work tiles, one below the other. A panel starts at the diagonal and ends at the last
/// column. Its order is column-major, as in Raster, and leaves out what is wholly below the diagonal:
///
///     0 1 3 5 7        square tiles, a panel of two rows
///       2 4 6 8
///         9 A C        the next one
///           B D
///             E
struct Triangle {
  static constexpr uint32_t kMostPanels = 64;
  uint32_t rows, columns, group, panels;  // rows and columns of work tiles; rows of a panel; number of panels
  uint32_t tile_m, tile_n;                // of a work tile
  FastDivisor by_tile_m, by_tile_n, per_batch;
  uint32_t first[kMostPanels];  // the number of the first work tile of each panel
};

/// The number of work tiles in rows `first` to `last` of tiles, of those that touch the upper triangle. A row has
/// `columns` tiles, of which those before the diagonal are left out.
inline int64_t tiles_of_rows(uint32_t first, uint32_t last, uint32_t columns, uint32_t tile_m, FastDivisor by_tile_n) {
  int64_t tiles = 0;
  for (uint32_t row = first; row < last; ++row) tiles += columns - by_tile_n.quotient(row * tile_m);
  return tiles;
}
/// The same of all rows, for a result of `n` rows and columns.
inline int64_t tiles_of_triangle(int64_t n, int64_t tile_m, int64_t tile_n) {
  const auto rows = static_cast<uint32_t>((n + tile_m - 1) / tile_m);
  const auto columns = static_cast<uint32_t>((n + tile_n - 1) / tile_n);
  return tiles_of_rows(0, rows, columns, static_cast<uint32_t>(tile_m), FastDivisor(static_cast<uint32_t>(tile_n)));
}

/// The triangle in panels of `group` rows of tiles, or of more if these would be too many panels.
inline Triangle triangle_of(int64_t n, int tile_m, int tile_n, uint32_t group) {
  Triangle t{};
  t.rows = static_cast<uint32_t>((n + tile_m - 1) / tile_m);
  t.columns = static_cast<uint32_t>((n + tile_n - 1) / tile_n);
  t.group = std::max(group, (t.rows + Triangle::kMostPanels - 1) / Triangle::kMostPanels);
  t.panels = (t.rows + t.group - 1) / t.group;
  t.tile_m = static_cast<uint32_t>(tile_m);
  t.tile_n = static_cast<uint32_t>(tile_n);
  t.by_tile_m = FastDivisor(t.tile_m);
  t.by_tile_n = FastDivisor(t.tile_n);
  uint32_t tiles = 0;
  for (uint32_t panel = 0, row = 0; panel < t.panels; ++panel, row += t.group) {
    t.first[panel] = tiles;
    tiles +=
        static_cast<uint32_t>(tiles_of_rows(row, std::min(row + t.group, t.rows), t.columns, t.tile_m, t.by_tile_n));
  }
  t.per_batch = FastDivisor(tiles);
  return t;
}

HGEMM_HOST_DEVICE inline RasterUnit unit_at(const Triangle& t, uint32_t id) {
  const uint32_t batch = t.per_batch.quotient(id), in_batch = id - batch * t.per_batch.divisor();
  uint32_t panel = 0;
  while (panel + 1 < t.panels && t.first[panel + 1] <= in_batch) ++panel;
  const uint32_t row = panel * t.group, height = t.group < t.rows - row ? t.group : t.rows - row;
  uint32_t at = in_batch - t.first[panel];
  for (uint32_t col = t.by_tile_n.quotient(row * t.tile_m);; ++col) {
    const uint32_t filled = t.by_tile_m.quotient((col + 1) * t.tile_n + t.tile_m - 1) - row;
    if (filled >= height) return {batch, row + at % height, col + at / height};
    if (at < filled) return {batch, row + at, col};
    at -= filled;
  }
}

}  // namespace hgemm::tile
