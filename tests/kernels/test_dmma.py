"""Where sm90_dmma puts elements in shared memory and in fragments, without a GPU."""

from __future__ import annotations

from pathlib import Path

from native_check import counts, needs_compiler

# Checks that places are a permutation, that eight lanes of 16 bytes are in different banks, and that the elements which
# lanes read for an mma are those of its slots. Prints how many accesses it looked at, or what is wrong.
CHECK = r"""
#include <cstdio>
#include <cstdlib>
#include <set>

#include "kernels/sm90_dmma/config.h"

using namespace hgemm::sm90_dmma;

int accesses = 0;

void require(bool ok, const char* what) {
  if (ok) return;
  std::puts(what);
  std::exit(1);
}

// `at`: where each lane of a warp reads or writes 16 bytes, in floats.
template <class At>
void conflict_free(const At& at, const char* what) {
  for (int first = 0; first < 32; first += 8) {
    std::set<int> banks;
    for (int lane = first; lane < first + 8; ++lane) {
      require(at(lane) % 4 == 0, "not aligned");
      banks.insert(at(lane) / 4 % 8);
    }
    require(banks.size() == 8, what);
  }
  ++accesses;
}

template <int EXTENT, bool kKMajor>
void places() {
  using P = Places<EXTENT, kKMajor>;
  std::set<int> seen;
  for (int x = 0; x < EXTENT; ++x) {
    for (int k = 0; k < BK; ++k) {
      seen.insert(P::at(x, k));
      // the neighbours that a copy, or a lane's load, takes at once
      require(kKMajor ? P::at(x, k) == P::at(x, k & ~3) + (k & 3) : P::at(x, k) == P::at(x & ~3, k) + (x & 3), "apart");
    }
  }
  require(seen.size() == EXTENT * BK && *seen.begin() == 0 && *seen.rbegin() == EXTENT * BK - 1, "no permutation");
  for (int base = 0; base < EXTENT; base += 32) {
    for (int j = 0; j < 4; ++j) {
      const auto b = [&](int lane) {
        const int g = lane / 4, t = lane % 4;
        return kKMajor ? P::at(base + column_of(j, g), k_of(t, 0)) : P::at(base + column_of(0, g), k_of(t, j));
      };
      const auto a = [&](int lane) {
        const int g = lane / 4, t = lane % 4;
        return kKMajor ? P::at(base + row_of<true>(j / 2, j % 2, g), k_of(t, 0))
                       : P::at(base + row_of<false>(0, 0, g), k_of(t, j));
      };
      conflict_free(b, "loads of B");
      conflict_free(a, "loads of A");
    }
  }
  for (int first = 0; first < EXTENT * BK / 4; first += 32) {  // copies of 16 bytes, in memory order
    conflict_free([&](int lane) {
      const int chunk = first + lane, row = chunk / (kKMajor ? BK / 4 : EXTENT / 4);
      const int column = chunk % (kKMajor ? BK / 4 : EXTENT / 4) * 4;
      return kKMajor ? P::at(row, column) : P::at(column, row);
    }, "copies");
  }
}

template <bool kKMajor>
void results(int rows) {
  std::set<int> seen, slots, columns;
  for (int row = 0; row < rows; ++row) {
    for (int column = 0; column < WN; ++column) {
      seen.insert(result_at(row, column));
      require(result_at(row, column) == result_at(row, column & ~3) + (column & 3), "results apart");
    }
  }
  require(seen.size() == static_cast<size_t>(rows * WN) && *seen.rbegin() == rows * WN - 1, "results overlap");
  for (int i = 0; i < rows / 16; ++i) {
    for (int h = 0; h < 2; ++h) {
      for (int g = 0; g < 8; ++g) {
        slots.insert(row_of<kKMajor>(i, h, g));
        require(!kKMajor || row_of<kKMajor>(i, h, g) / 16 == i, "rows of an mma that is left out");
        if (!kKMajor) require(row_of<false>(i, h, g) == row_of<false>(i & ~1, 0, g) + i % 2 * 2 + h, "four rows");
      }
      for (int e = 0; e < 2; ++e) {
        const auto four = [&](int lane) {
          return result_at(row_of<kKMajor>(i, h, lane / 4), column_of(0, 2 * (lane % 4) + e));
        };
        conflict_free(four, "stores of results");
      }
    }
  }
  require(slots.size() == static_cast<size_t>(rows) && *slots.rbegin() == rows - 1, "rows");
  for (int j = 0; j < 4; ++j) {
    for (int g = 0; g < 8; ++g) {
      columns.insert(column_of(j, g));
      require(column_of(j, g) == column_of(0, g) + j, "four columns");
    }
  }
  require(columns.size() == WN && *columns.rbegin() == WN - 1, "columns");
}

int main() {
  places<32, true>(), places<64, true>(), places<128, true>();
  places<32, false>(), places<64, false>(), places<128, false>();
  results<true>(32), results<true>(64), results<false>(32), results<false>(64);
  std::set<int> ks;
  for (int t = 0; t < 4; ++t) {
    for (int j = 0; j < 4; ++j) ks.insert(k_of(t, j));
  }
  require(ks.size() == BK && *ks.rbegin() == BK - 1, "k");
  std::printf("%d\n", accesses);
}
"""


@needs_compiler
def test_places_are_a_permutation_without_bank_conflicts(tmp_path: Path) -> None:
    (accesses,) = counts(CHECK, tmp_path)
    assert accesses > 200
