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

// `at`: where each lane of a warp reads or writes 16 bytes, in units of four bytes.
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

template <int EXTENT, bool kKMajor, class T>
void places() {
  using P = Places<EXTENT, kKMajor, T>;
  constexpr int kUnits = sizeof(T) / 4, kChunk = 4 / kUnits;  // of an element; elements of 16 bytes
  std::set<int> seen;
  for (int x = 0; x < EXTENT; ++x) {
    for (int k = 0; k < BK; ++k) {
      seen.insert(P::at(x, k));
      // the neighbours that a copy, or a lane's load, takes at once, and those of a sector
      const int first_x = kKMajor ? x : x / kChunk * kChunk, first_k = kKMajor ? k / kChunk * kChunk : k;
      require(P::at(x, k) == P::at(first_x, first_k) + (x - first_x + k - first_k) * kUnits, "apart");
      const int four_x = kKMajor ? x : x & ~3, four_k = kKMajor ? k & ~3 : k;
      require(P::at(x, k) / (4 * kUnits) == P::at(four_x, four_k) / (4 * kUnits), "two sectors");
    }
  }
  const int last = (EXTENT * BK - 1) * kUnits;
  require(seen.size() == EXTENT * BK && *seen.begin() == 0 && *seen.rbegin() == last, "no permutation");
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
      if (kUnits == 1) continue;
      conflict_free([&](int lane) { return second_chunk(b(lane)); }, "loads of B's second chunks");
      conflict_free([&](int lane) { return second_chunk(a(lane)); }, "loads of A's second chunks");
    }
  }
  for (int first = 0; first < EXTENT * BK / kChunk; first += 32) {  // copies of 16 bytes, in memory order
    conflict_free([&](int lane) {
      const int chunk = first + lane, in_row = (kKMajor ? BK : EXTENT) / kChunk;
      return P::in_memory(chunk / in_row, chunk % in_row * kChunk);
    }, "copies");
  }
}

// The places that threads and lanes compute from their first one are those of Places.
template <int EXTENT, bool kKMajor, int THREADS, int kElements, class T>
void turns() {
  using P = Places<EXTENT, kKMajor, T>;
  constexpr int kPerRow = (kKMajor ? BK : EXTENT) / kElements, kAtOnce = THREADS / kPerRow;
  for (int thread = 0; thread < THREADS; ++thread) {
    const int row = thread / kPerRow, column = thread % kPerRow * kElements;
    for (int turn = 0; turn < (kKMajor ? EXTENT : BK) / kAtOnce; ++turn) {
      require(TurnPlaces<EXTENT, kKMajor, kAtOnce, T>::at(4 * P::in_memory(row, column), turn) ==
                  4 * P::in_memory(row + turn * kAtOnce, column), "turns");
      ++accesses;
    }
  }
}

template <int EXTENT, bool kKMajor, class T>
void lanes() {
  using P = Places<EXTENT, kKMajor, T>;
  using L = LanePlaces<EXTENT, kKMajor, T>;
  const auto is_four = [](int place, int x, int k) {
    return place == P::at(x, k) &&
           (sizeof(T) == 4 || second_chunk(place) == P::at(x + (kKMajor ? 0 : 2), k + (kKMajor ? 2 : 0)));
  };
  for (int x0 = 0; x0 < EXTENT; x0 += 32) {
    for (int lane = 0; lane < 32; ++lane) {
      const int g = lane / 4, t = lane % 4, a = L::first_of_a(x0, g, t), b = L::first_of_b(x0, g, t);
      for (int x = 0; x < 4; ++x) {
        if (kKMajor) {
          require(is_four(L::column(b, x), x0 + column_of(x, g), k_of(t, 0)), "columns of a lane");
          for (int h = 0; h < 2 && x0 + 16 * x < EXTENT; ++h) {
            require(is_four(L::row(a, x, h), x0 + row_of<true>(x, h, g), k_of(t, 0)), "rows of a lane");
          }
        } else {
          require(is_four(L::k(b, 0, x), x0 + column_of(0, g), k_of(t, x)), "k of a lane's columns");
          for (int band = 0; x0 + 32 * band < EXTENT; ++band) {
            require(is_four(L::k(a, band, x), x0 + row_of<false>(2 * band, 0, g), k_of(t, x)), "k of a lane's rows");
          }
        }
        // A lane finds the second chunks from the second one of the first four.
        if (sizeof(T) == 8) {
          require((kKMajor ? L::column(second_chunk(b), x) : L::k(second_chunk(b), 0, x)) ==
                      second_chunk(kKMajor ? L::column(b, x) : L::k(b, 0, x)), "second chunks");
        }
        ++accesses;
      }
    }
  }
}

template <int EXTENT, bool kKMajor, class T>
void extents() {
  constexpr int kChunk = 16 / sizeof(T);
  places<EXTENT, kKMajor, T>();
  lanes<EXTENT, kKMajor, T>();
  turns<EXTENT, kKMajor, 128, kChunk, T>(), turns<EXTENT, kKMajor, 128, 1, T>();
  if constexpr (EXTENT <= 64) turns<EXTENT, kKMajor, 64, kChunk, T>(), turns<EXTENT, kKMajor, 64, 1, T>();
}

template <class T>
void elements() {
  extents<32, true, T>(), extents<64, true, T>(), extents<128, true, T>();
  extents<32, false, T>(), extents<64, false, T>(), extents<128, false, T>();
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
          const int row = row_of<kKMajor>(0, 0, lane / 4) + row_of<kKMajor>(i, h, 0);
          require(row == row_of<kKMajor>(i, h, lane / 4), "rows of a lane's results");
          return result_at(row, column_of(0, 2 * (lane % 4)) + column_of(0, e));
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
  elements<float>(), elements<double>();
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
    assert accesses > 10_000
