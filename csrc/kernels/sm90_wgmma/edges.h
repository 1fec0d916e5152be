// How the clusters of an edged launch (Edged in config.h) share C.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/host_device.h"

namespace hgemm::sm90_wgmma {

/// How the clusters of an edged launch share C, counted in units (the tiles of a cluster).
struct Edges {
  uint32_t clusters;
  uint32_t columns;        // whole units in a row of units; 0: there is nothing to gain
  uint32_t turns, longer;  // the first `longer` clusters do that many whole units, the others one less and an edge
  uint32_t rows, edges;    // of edges in a column, and all of them
};

/// Whether a cluster's turn is a whole unit: the `turn * clusters + cluster`-th.
HGEMM_HOST_DEVICE inline bool is_whole(const Edges& e, uint32_t cluster, uint32_t turn) {
  return turn + (cluster < e.longer ? 0 : 1) < e.turns;
}
/// If not: the edge that a cluster has in its last turn, one of those behind the last if it has none.
HGEMM_HOST_DEVICE inline uint32_t edge_of(const Edges& e, uint32_t cluster) {
  return cluster - e.longer;
}
HGEMM_HOST_DEVICE inline bool has_turn(const Edges& e, uint32_t cluster, uint32_t turn) {
  return is_whole(e, cluster, turn) || (turn < e.turns && edge_of(e, cluster) < e.edges);
}

/// For units of `bn` columns against whole ones of `width`.
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
