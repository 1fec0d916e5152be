"""The orders in which kernels take the tiles of C, and the divisions by which they find them, without a GPU."""

from __future__ import annotations

from pathlib import Path

from native_check import counts, needs_compiler

# Prints what is wrong and where.
CHECK = r"""
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "tile/raster.h"
#include "tile/triangle.h"

using namespace hgemm;
using namespace hgemm::tile;

long quotients = 0, units = 0, in_triangles = 0;

void check_divisor(uint32_t divisor) {
  const FastDivisor fast(divisor);
  const auto check = [&](uint64_t dividend) {
    if (dividend >= uint64_t{1} << 31) return;
    ++quotients;
    const auto n = static_cast<uint32_t>(dividend);
    if (fast.divisor() == divisor && fast.quotient(n) == n / divisor) return;
    std::printf("%u / %u: %u\n", n, divisor, fast.quotient(n));
    std::exit(1);
  };
  // The largest error is right below a multiple, and grows with the dividend.
  const uint64_t last = ((uint64_t{1} << 31) - 1) / divisor;
  for (uint64_t q = 0; q <= last; q = q < 100 || q > last - 100 ? q + 1 : q + 1 + (last - 200) / 999) {
    for (int64_t near = -1; near <= 1; ++near) {
      if (q > 0 || near >= 0) check(q * divisor + near);
    }
  }
  check((uint64_t{1} << 31) - 1);
}

void check_raster(uint32_t units_m, uint32_t units_n, uint32_t batches, uint32_t group) {
  const Raster raster = raster_of(units_m, units_n, group);
  const auto require = [&](bool ok, const char* what) {
    if (ok) return;
    std::printf("%u x %u units, %u batches, panels of %u: %s\n", units_m, units_n, batches, group, what);
    std::exit(1);
  };
  uint32_t id = 0;
  for (uint32_t batch = 0; batch < batches; ++batch) {
    for (uint32_t first = 0; first < units_m; first += group) {
      for (uint32_t col = 0; col < units_n; ++col) {
        for (uint32_t row = first; row < units_m && row < first + group; ++row, ++id, ++units) {
          const RasterUnit unit = unit_at(raster, id);
          require(unit.batch == batch && unit.row == row && unit.col == col, "out of order");
        }
      }
    }
  }
}

/// Column by column in panels, without the tiles that are wholly below the diagonal.
void check_triangle(uint32_t n, uint32_t tile_m, uint32_t tile_n, uint32_t batches, uint32_t group) {
  const Triangle triangle = triangle_of(n, tile_m, tile_n, group);
  const uint32_t rows = (n + tile_m - 1) / tile_m, columns = (n + tile_n - 1) / tile_n;
  const auto require = [&](bool ok, const char* what) {
    if (ok) return;
    std::printf("triangle of %u in %u x %u, panels of %u: %s\n", n, tile_m, tile_n, group, what);
    std::exit(1);
  };
  uint32_t id = 0;
  for (uint32_t batch = 0; batch < batches; ++batch) {
    for (uint32_t first = 0; first < rows; first += triangle.group) {
      for (uint32_t col = 0; col < columns; ++col) {
        for (uint32_t row = first; row < rows && row < first + triangle.group; ++row) {
          if ((col + 1) * tile_n <= row * tile_m) continue;
          const RasterUnit unit = unit_at(triangle, id++);
          require(unit.batch == batch && unit.row == row && unit.col == col, "out of order");
        }
      }
    }
  }
  require(triangle.group >= group && triangle.panels <= Triangle::kMostPanels, "too many panels");
  require(id == triangle.per_batch.divisor() * batches, "other tiles than were counted");
  require(tiles_of_triangle(n, tile_m, tile_n) == triangle.per_batch.divisor(), "two counts");
  in_triangles += id;
}

int main() {
  for (uint32_t d = 1; d < 3000; ++d) check_divisor(d);
  for (int bit = 2; bit < 32; ++bit) {
    for (int64_t near = -2; near <= 2; ++near) {
      const int64_t d = (int64_t{1} << bit) + near;
      if (d <= int64_t{1} << 31) check_divisor(static_cast<uint32_t>(d));
    }
  }
  for (uint64_t d = 3; d < uint64_t{1} << 31; d = d * 7 / 5 + 1) check_divisor(static_cast<uint32_t>(d));

  for (uint32_t m : {1, 2, 3, 7, 8, 9, 16, 33}) {
    for (uint32_t n : {1, 2, 5, 21, 64}) {
      for (uint32_t batches : {1, 3}) {
        for (uint32_t group : {1, 2, 7, 8, 16}) check_raster(m, n, batches, group);
      }
    }
  }
  for (uint32_t n = 1; n < 5000; n += n < 700 ? 1 : 331) {
    for (uint32_t group : {1, 3, 8, 16}) {
      check_triangle(n, 64, 64, 2, group);
      check_triangle(n, 128, 64, 1, group);
      check_triangle(n, 256, 128, 3, group);
      check_triangle(n, 256, 192, 1, group);
      check_triangle(n, 128, 160, 2, group);
    }
  }
  // As many units as are let through, in one panel that is wider than 2^32 of them would be.
  const Raster large = raster_of(3, (1u << 29) / 3, 1024);
  const RasterUnit last = unit_at(large, 3 * ((1u << 29) / 3) - 1);
  if (last.batch != 0 || last.row != 2 || last.col != (1u << 29) / 3 - 1) return std::puts("the last of 2^29"), 1;
  std::printf("%ld %ld %ld\n", quotients, units, in_triangles);
}
"""


@needs_compiler
def test_units_come_column_by_column_in_panels(tmp_path: Path) -> None:
    quotients, units, in_triangles = counts(CHECK, tmp_path)
    assert quotients > 1_000_000 and units > 10_000 and in_triangles > 10_000
