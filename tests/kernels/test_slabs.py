"""How a problem is cut into slabs (``csrc/tile/slabs.h``): each element of D once, within the workspace, few copies."""

from __future__ import annotations

from pathlib import Path

from native_check import counts, needs_compiler

# Random problems with every kind of operand: padded, in planes, or read in place. The check walks over the slabs as
# a launch does, and keeps in mind what the copies in the workspace hold.
CHECK = r"""
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <set>

#include "tile/pad.h"
#include "tile/slabs.h"
#include "tile/split_planes.h"

using namespace hgemm;

namespace {

std::mt19937_64 engine(1);
int64_t below(int64_t n) { return static_cast<int64_t>(engine() % static_cast<uint64_t>(n)); }
int64_t size() {
  return 1 + static_cast<int64_t>(std::exp(static_cast<double>(below(1000)) / 1000 * std::log(3000.0)));
}

#define REQUIRE(condition)                                                     \
  do {                                                                         \
    if (!(condition)) {                                                        \
      std::printf("line %d: %s\n", __LINE__, #condition);                      \
      std::exit(1);                                                            \
    }                                                                          \
  } while (false)

void* address(int64_t x) { return reinterpret_cast<void*>(static_cast<uintptr_t>(x)); }
int64_t offset(const void* to, const void* from, int bytes) {
  return (reinterpret_cast<intptr_t>(to) - reinterpret_cast<intptr_t>(from)) / bytes;
}

Problem random_problem(DType dtype) {
  Problem p;
  p.dtype = p.out_dtype = p.c_dtype = dtype;
  p.m = size(), p.n = size(), p.k = size();
  if (below(2)) p.batch[1] = 1 + below(9);
  if (below(4) == 0) p.batch[0] = 2 + below(4);
  const auto operand = [&](Matrix* x, int64_t base, int64_t rows, int64_t cols, bool row_major) {
    x->data = address(base);
    x->row_stride = row_major ? cols : 1;
    x->col_stride = row_major ? 1 : rows;
    x->batch_stride[1] = below(4) == 0 || p.batch[1] == 1 ? 0 : rows * cols;
    x->batch_stride[0] = below(4) == 0 || p.batch[0] == 1 ? 0 : rows * cols * p.batch[1];
  };
  operand(&p.a, int64_t{1} << 40, p.m, p.k, below(2));
  operand(&p.b, int64_t{1} << 41, p.k, p.n, below(2));
  p.d = {address(int64_t{1} << 42), p.n, 1, {p.m * p.n * p.batch[1], p.m * p.n}};
  if (below(2)) p.bias = address(int64_t{1} << 43);
  if (below(2)) p.pre_activation = address(int64_t{1} << 44);
  if (below(2)) p.c = {address(int64_t{1} << 45), below(2) ? p.n : 0, below(2), {below(2) * 7, below(2) * 5}};
  return p;
}

void check(const Problem& p, const tile::Slabs& s, size_t limit, const tile::CopiedBytes& bytes) {
  REQUIRE(s.workspace() <= limit);
  const int e = dtype_bytes(p.dtype);
  int64_t parts = 0, elements = 0, a_copies = 0, b_copies = 0;
  const void *a_held = nullptr, *b_held = nullptr;
  int64_t a_rows = 0, b_cols = 0;
  std::set<int64_t> starts;
  tile::for_each_slab(p, s, [&](const Problem& part, const tile::Changed& changed) {
    ++parts;
    REQUIRE(part.m > 0 && part.n > 0 && part.k == p.k && part.batches() > 0);
    REQUIRE(bytes.a(part) <= s.a_bytes && bytes.b(part) <= s.b_bytes);
    REQUIRE(s.a_bytes % 256 == 0);
    a_copies += changed.a, b_copies += changed.b;
    if (changed.a) a_held = part.a.data, a_rows = part.m;
    if (changed.b) b_held = part.b.data, b_cols = part.n;
    REQUIRE(a_held == part.a.data && a_rows == part.m && b_held == part.b.data && b_cols == part.n);
    // Where the part lies in D, and that its operands lie at the same place.
    const int64_t at = offset(part.d.data, p.d.data, e), inside = at % (p.m * p.n), matrix = at / (p.m * p.n);
    const int64_t row = inside / p.n, col = inside % p.n, outer = matrix / p.batch[1], inner = matrix % p.batch[1];
    REQUIRE(row + part.m <= p.m && col + part.n <= p.n);
    REQUIRE(outer + part.batch[0] <= p.batch[0] && inner + part.batch[1] <= p.batch[1]);
    const auto lies = [&](const Matrix& x, const Matrix& whole, int64_t r, int64_t c) {
      return offset(x.data, whole.data, e) == outer * whole.batch_stride[0] + inner * whole.batch_stride[1] +
                                                  r * whole.row_stride + c * whole.col_stride;
    };
    REQUIRE(lies(part.a, p.a, row, 0) && lies(part.b, p.b, 0, col));
    REQUIRE(p.c.data == nullptr ? part.c.data == nullptr : lies(part.c, p.c, row, col));
    REQUIRE(p.bias == nullptr ? part.bias == nullptr : offset(part.bias, p.bias, e) == col);
    REQUIRE(p.pre_activation == nullptr ? part.pre_activation == nullptr
                                        : offset(part.pre_activation, p.pre_activation, e) == at);
    REQUIRE(row % 8 == 0 && col % 8 == 0 && changed.diagonal == row - col);
    REQUIRE(alignment_a(part) >= alignment_a(p) && alignment_b(part) >= alignment_b(p));
    // Slabs are boxes of a grid, so it is enough that they are different and that their sizes add up.
    REQUIRE(starts.insert(at).second);
    elements += part.m * part.n * part.batches();
    return 0;
  });
  REQUIRE(parts == s.count && elements == p.m * p.n * p.batches());
  if (p.batches() == 1) {  // the outer loop's copies are made once, and each of its turns leaves a copy to the next one
    const int64_t of_a = ceil_div(p.m, s.m), of_b = ceil_div(p.n, s.n);
    REQUIRE(a_copies == (s.rows_inside ? of_b * of_a - (of_b - 1) : of_a));
    REQUIRE(b_copies == (s.rows_inside ? of_b : of_a * of_b - (of_a - 1)));
  }
  REQUIRE(std::isfinite(s.extra_us) && (s.count == 1 ? s.extra_us == 0 : s.extra_us >= 0));
}

/// Parts of K: they cover K once, and only the first has the addends, only the last the activation.
void check_parts_of_k(Problem p, size_t limit, const tile::CopiedBytes& bytes) {
  p.batch[0] = p.batch[1] = 1;
  p.act = Activation::kGelu;
  const tile::Slabs s = tile::slabs_of_k(p, limit, bytes);
  if (s.count == 0) return;
  REQUIRE(s.workspace() <= limit && s.m == p.m && s.n == p.n);
  const int e = dtype_bytes(p.dtype);
  int64_t parts = 0, k = 0;
  tile::for_each_slab(p, s, [&](const Problem& part, const tile::Changed& changed) {
    REQUIRE(changed.a && changed.b && bytes.a(part) <= s.a_bytes && bytes.b(part) <= s.b_bytes);
    REQUIRE(part.m == p.m && part.n == p.n && part.d.data == p.d.data);
    REQUIRE(offset(part.a.data, p.a.data, e) == k * p.a.col_stride);
    REQUIRE(offset(part.b.data, p.b.data, e) == k * p.b.row_stride);
    const bool is_first = k == 0, is_last = k + part.k == p.k;
    REQUIRE(part.c.data == (is_first ? p.c.data : p.d.data) && part.bias == (is_first ? p.bias : nullptr));
    REQUIRE(is_first || part.beta == 1.0f);
    REQUIRE((part.act == Activation::kGelu) == is_last);
    REQUIRE(part.pre_activation == (is_last ? p.pre_activation : nullptr));
    k += part.k;
    ++parts;
    return 0;
  });
  REQUIRE(parts == s.count && k == p.k);
}

}  // namespace

int main() {
  int64_t cut = 0, thin = 0, refused = 0;
  for (int i = 0; i < 5000; ++i) {
    const bool planes = below(2);
    Problem p = random_problem(planes ? DType::kF32 : DType::kF16);
    const PaddedBytes padded({below(4) != 0, below(4) != 0, static_cast<int32_t>(below(2) * 176)});
    const tile::split::PlanesBytes in_planes;
    const tile::CopiedBytes& bytes = planes ? static_cast<const tile::CopiedBytes&>(in_planes) : padded;
    const auto gemm_us = 1 + static_cast<double>(below(1000));
    const tile::SlabCost cost = {64 << below(3), below(2) ? 176 : 128, 1 + below(132), gemm_us, 1e-6, 5.0};
    const size_t limit = size_t{1} << (12 + below(15));
    if (planes) check_parts_of_k(p, limit, bytes);
    bool computed = false;
    const tile::Slabs s = tile::fewest_slabs(p, limit, bytes, [&] { computed = true; return cost; });
    if (s.count == 0) {
      // Then not even 8 rows and 8 columns fit.
      Problem least = p;
      least.batch[0] = least.batch[1] = 1;
      least.m = std::min<int64_t>(p.m, 8), least.n = std::min<int64_t>(p.n, 8);
      REQUIRE(bytes.a(least) + bytes.b(least) + 512 > limit);
      ++refused;
      continue;
    }
    check(p, s, limit, bytes);
    REQUIRE(computed == (s.count > 1 || tile::one_slab(p, bytes).workspace() > limit));
    cut += s.count > 1;
    thin += s.count > 1 && (s.m < cost.tile_m || s.n < cost.tile_n) && s.m < p.m && s.n < p.n;
  }
  std::printf("%lld %lld %lld\n", static_cast<long long>(cut), static_cast<long long>(thin),
              static_cast<long long>(refused));
}
"""

# The sizes of the issue, for the kernels of an H200: whole waves, and each operand copied once or nearly so.
COSTS = r"""
#include <cstdio>

#include "tile/split_planes.h"

using namespace hgemm;

int main() {
  const int64_t shapes[][3] = {{8192, 8192, 8192}, {16384, 8192, 8192}, {768, 50304, 8192}, {2048, 14336, 4096}};
  for (const auto& [m, n, k] : shapes) {
    Problem p;
    p.dtype = DType::kF32;
    p.m = m, p.n = n, p.k = k;
    p.a = {nullptr, k, 1, {0, 0}};
    p.b = {nullptr, 1, k, {0, 0}};
    const double gemm_us = 2e-8 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
    const tile::SlabCost cost{256, 128, 66, gemm_us, 4.3e-7, 5.0};
    const tile::Slabs s = tile::slabs_of(p, size_t{256} << 20, cost, tile::split::PlanesBytes());
    std::printf("%d ", static_cast<int>(1000 * s.extra_us / gemm_us));
  }
}
"""

FILES = ("tile/slabs.cc", "tile/pad.cc", "core/problem.cc")


@needs_compiler
def test_slabs_cover_the_result_within_the_workspace(tmp_path: Path) -> None:
    cut, thin, refused = counts(CHECK, tmp_path, *FILES)
    assert cut > 1000
    assert thin > 25
    assert refused > 25


@needs_compiler
def test_slabs_cost_little(tmp_path: Path) -> None:
    """In thousandths of the time of the GEMM."""
    found = counts(COSTS, tmp_path, *FILES)
    assert max(found) <= 40, found
