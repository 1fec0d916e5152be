"""The order in which sm90_wgmma takes the tiles of C, and the divisions by which it finds them, without a GPU."""

from __future__ import annotations

from pathlib import Path

from native_check import counts, needs_compiler

# Prints what is wrong and where.
CHECK = r"""
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "tile/raster.h"

using namespace hgemm;
using namespace hgemm::tile;

long quotients = 0, units = 0;

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
  // As many units as are let through, in one panel that is wider than 2^32 of them would be.
  const Raster large = raster_of(3, (1u << 29) / 3, 1024);
  const RasterUnit last = unit_at(large, 3 * ((1u << 29) / 3) - 1);
  if (last.batch != 0 || last.row != 2 || last.col != (1u << 29) / 3 - 1) return std::puts("the last of 2^29"), 1;
  std::printf("%ld %ld\n", quotients, units);
}
"""


@needs_compiler
def test_units_come_column_by_column_in_panels(tmp_path: Path) -> None:
    quotients, units = counts(CHECK, tmp_path)
    assert quotients > 1_000_000 and units > 10_000
