"""How the clusters of an edged kernel share C, without a GPU."""

from __future__ import annotations

from pathlib import Path

from native_check import counts, needs_compiler

# Units of 256 x 248, edges of 512 x 128, as in sm90_wgmma/list.h. Prints what is wrong and where.
CHECK = r"""
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "kernels/sm90_wgmma/edges.h"

using namespace hgemm::sm90_wgmma;

int launches = 0, edged = 0, with_edges = 0;

void check(uint32_t units_m, uint32_t n, uint32_t clusters) {
  const Edges e = edges_of(units_m, n, clusters, 248, 128);
  const auto require = [&](bool ok, const char* what) {
    if (ok) return;
    std::printf("%u units high, %u columns, %u clusters: %s\n", units_m, n, clusters, what);
    std::exit(1);
  };
  ++launches;
  if (e.columns == 0) return;
  ++edged;
  with_edges += e.edges > 0;
  require(e.clusters == clusters, "clusters without work");
  const uint32_t waves = (units_m * ((n + 255) / 256) + clusters - 1) / clusters;
  std::vector<int> whole(units_m * e.columns), narrow(e.edges);  // how often each is done
  uint32_t longest = 0;
  for (uint32_t c = 0; c < clusters; ++c) {
    uint32_t turn = 0, columns = 0;
    for (; has_turn(e, c, turn); ++turn) {
      if (is_whole(e, c, turn)) {
        const uint32_t id = turn * clusters + c;
        require(id < whole.size(), "no such unit");
        ++whole[id];
        columns += 248;
      } else {
        require(edge_of(e, c) < e.edges && !has_turn(e, c, turn + 1), "an edge before the last turn");
        ++narrow[edge_of(e, c)];
        columns += 2 * 128;
      }
    }
    require(turn > 0 && is_whole(e, c, 0), "an edge in the first turn");
    if (columns > longest) longest = columns;
  }
  for (int times : whole) require(times == 1, "a unit is left out or done twice");
  for (int times : narrow) require(times == 1, "an edge is left out or done twice");
  const uint32_t left = n > e.columns * 248 ? n - e.columns * 248 : 0;
  require(n >= e.columns * 248, "units beyond C");
  require(e.rows == (units_m + 1) / 2 && e.edges % e.rows == 0, "edges of other heights");
  require(e.edges / e.rows * 128 >= left && (left > 0 || e.edges == 0), "columns that nobody covers");
  require(longest < waves * 256, "nothing is gained");
}

int main() {
  for (uint32_t clusters : {1, 2, 7, 57, 66, 72}) {
    for (uint32_t units_m : {1, 2, 3, 4, 7, 8, 12, 16, 17, 32, 64, 67}) {
      for (uint32_t n = 8; n < 20000; n += n < 1000 ? 8 : 104) check(units_m, n, clusters);
      for (uint32_t n : {2048, 4096, 8192, 16384, 28672}) check(units_m, n, clusters);
    }
  }
  const Edges e = edges_of(16, 4096, 66, 248, 128);  // the example of Edged
  if (e.columns != 16 || e.edges != 8 || e.turns != 4 || e.longer != 58) return std::puts("4096 x 4096"), 1;
  std::printf("%d %d %d\n", launches, edged, with_edges);
}
"""


@needs_compiler
def test_every_column_is_covered_in_less_time(tmp_path: Path) -> None:
    launches, edged, with_edges = counts(CHECK, tmp_path)
    assert launches > edged > launches / 10 and with_edges > edged / 2
