// The order in which slabs (slabs.h) run, for the families that copy operands.
//
// The inner loop goes back and forth. The copy that was made last then serves the first slab of the next turn:
//
//            columns of B
//          ┌──────┬──────┐
//  rows    │ 3    │ 4    │       With rows inside, the copy of the first rows is made once for slabs 3 and 4.
//  of A    ├──────┼──────┤
//          │ 2    │ 5    │
//          ├──────┼──────┤
//          │ 1    │ 6    │       The first turn ends with a full slab, because the last one may be smaller.
//          └──────┴──────┘
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "tile/slabs.h"

namespace hgemm::tile {

/// Calls `launch(part, changed)` for each slab, up to the first one that fails, and returns the last status.
template <class Launch>
Status for_each_slab_in_turns(const Problem& whole, const Slabs& slabs, const Launch& launch) {
  if (slabs.count == 1) return launch(whole, Changed{});
  struct Slab {
    Problem part;
    int64_t diagonal;
  };
  std::vector<Slab> all;
  all.reserve(static_cast<size_t>(slabs.count));
  for_each_slab(whole, slabs, [&all](const Problem& part, const Changed& changed) -> Status {
    all.push_back({part, changed.diagonal});
    return 0;
  });
  const auto turn = slabs.rows_inside ? ceil_div(whole.m, slabs.m) : ceil_div(whole.n, slabs.n);
  for (auto first = all.begin(); all.end() - first >= turn; first += std::min(2 * turn, all.end() - first)) {
    std::reverse(first, first + turn);
  }
  const void *a_before = nullptr, *b_before = nullptr;
  int64_t m_before = 0, n_before = 0;
  for (const auto& [part, diagonal] : all) {
    // An operand that is broadcast over the batch has the same address, and the same copy, in each slab.
    const Changed changed{part.a.data != a_before || part.m != m_before, part.b.data != b_before || part.n != n_before,
                          diagonal};
    a_before = part.a.data, b_before = part.b.data, m_before = part.m, n_before = part.n;
    if (const Status e = launch(part, changed)) return e;
  }
  return 0;
}

}  // namespace hgemm::tile
