// Edged (config.h): how the clusters of a launch share the tiles of C, residue tiles included.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/host_device.h"

namespace hgemm::sm90_wgmma {

/// How the clusters of an Edged launch share C. A unit is a whole work tile (the output tiles of one cluster); an edge
/// is a residue tile; a turn is one iteration of a cluster's persistent loop.
struct Edges {
  uint32_t clusters;
  uint32_t columns;  // whole work tiles in a row of C; 0: residue tiles save no time
  // The first `longer` clusters compute `turns` whole work tiles each, the others one less and then a residue tile.
  uint32_t turns, longer;
  uint32_t rows, edges;  // residue tiles in a column, and altogether
};

/// True if a cluster computes a whole work tile in iteration `turn`, namely number `turn * clusters + cluster`.
HGEMM_HOST_DEVICE inline bool is_whole(const Edges& e, uint32_t cluster, uint32_t turn) {
  return turn + (cluster < e.longer ? 0 : 1) < e.turns;
}
/// Otherwise: the residue tile that the cluster computes in its last iteration. A result of Edges::edges or more means
/// that it has none.
HGEMM_HOST_DEVICE inline uint32_t edge_of(const Edges& e, uint32_t cluster) {
  return cluster - e.longer;
}
HGEMM_HOST_DEVICE inline bool has_turn(const Edges& e, uint32_t cluster, uint32_t turn) {
  return is_whole(e, cluster, turn) || (turn < e.turns && edge_of(e, cluster) < e.edges);
}

/// The decomposition into work tiles of `bn` columns and residue tiles of `edge` columns, if it is predicted to be
/// faster than work tiles of `width` columns alone; otherwise `columns` is 0.
inline Edges edges_of(int64_t units_m, int64_t n, int64_t clusters, int64_t bn, int64_t edge, int64_t width = 256) {
  const auto count = [](int64_t x) { return static_cast<uint32_t>(x); };
  const auto ceil_div = [](int64_t a, int64_t b) { return (a + b - 1) / b; };
  const int64_t rows = ceil_div(units_m, 2);
  int64_t least = ceil_div(units_m * ceil_div(n, width), clusters) * width;
  Edges best{};
  for (int64_t columns = n / bn; columns > std::max<int64_t>(n / bn - 2, 0); --columns) {
    const int64_t whole = units_m * columns, turns = ceil_div(whole, clusters);
    const int64_t longer = whole - (turns - 1) * clusters, edges = rows * ceil_div(n - columns * bn, edge);
    const int64_t time = (turns - 1) * bn + std::max(bn, edges > 0 ? 2 * edge : 0);
    if (edges > clusters - longer || turns < 2 || time >= least) continue;
    best.clusters = count(clusters);
    best.columns = count(columns);
    best.turns = count(turns);
    best.longer = count(longer);
    best.rows = count(rows);
    best.edges = count(edges);
    least = time;
  }
  return best;
}

}  // namespace hgemm::sm90_wgmma
