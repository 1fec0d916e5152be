#include "tile/slabs.h"

#include <algorithm>
#include <cmath>

namespace hgemm::tile {
namespace {

constexpr int64_t kGrain = 8;       // elements: 16 bytes of the narrowest type
constexpr size_t kAlign = 256;      // of the copies in the workspace
constexpr int64_t kMostCounts = 6;  // numbers of slabs along the outer loop that are tried
constexpr int64_t kMostInside = 3;  // and along the inner loop, beside the one with the fullest waves

size_t aligned(size_t bytes) {
  return (bytes + kAlign - 1) / kAlign * kAlign;
}

/// One dimension of the slabs of a matrix: rows of A or columns of B.
struct Side {
  const CopiedBytes& bytes;
  Problem problem;  // with the extents of a slab
  int64_t extent, tile, grain;
  bool is_rows;

  size_t bytes_of(int64_t of) {
    (is_rows ? problem.m : problem.n) = of;
    return aligned(is_rows ? bytes.a(problem) : bytes.b(problem));
  }
  int64_t grains() const { return ceil_div(extent, grain); }

  /// The bytes of all slabs' copies, if those of a slab of `of` elements take `bytes`. The loop over the slabs runs
  /// `turns` times, back and forth, so the slab that ends a turn serves the next one as well.
  double bytes_in_slabs(size_t bytes, int64_t of, int64_t turns) const {
    const auto slabs_in = [of](int64_t elements) { return static_cast<double>(elements) / static_cast<double>(of); };
    const int64_t last = extent % of == 0 ? of : extent % of;
    const double kept = static_cast<double>(turns / 2) + static_cast<double>((turns - 1) / 2) * slabs_in(last);
    return static_cast<double>(bytes) * (static_cast<double>(turns) * slabs_in(extent) - kept);
  }

  /// The largest slab, in grains, whose copy takes at most `limit` bytes; 0 if there is none.
  int64_t largest(size_t limit) {
    if (bytes_of(extent) <= limit) return grains();
    int64_t fits = 0, exceeds = grains();
    while (exceeds - fits > 1) {
      const int64_t middle = fits + (exceeds - fits) / 2;
      (bytes_of(middle * grain) <= limit ? fits : exceeds) = middle;
    }
    return fits;
  }
};

/// The waves of work tiles of all slabs of `x` by `y` elements.
double waves_of(const Side& sx, int64_t x, const Side& sy, int64_t y, int64_t matrices, int64_t at_once) {
  const int64_t xs[2] = {sx.extent / x, sx.extent % x > 0}, ys[2] = {sy.extent / y, sy.extent % y > 0};
  const int64_t x_tiles[2] = {ceil_div(x, sx.tile), ceil_div(sx.extent % x, sx.tile)};
  const int64_t y_tiles[2] = {ceil_div(y, sy.tile), ceil_div(sy.extent % y, sy.tile)};
  int64_t waves = 0;
  for (int i = 0; i < 2; ++i) {
    for (int j = 0; j < 2; ++j) waves += xs[i] * ys[j] * ceil_div(x_tiles[i] * y_tiles[j] * matrices, at_once);
  }
  return static_cast<double>(waves);
}

struct Best {
  Slabs slabs;
  double us = INFINITY;
};

/// Tries slabs of one matrix with the loop over `y` inside. Each part of x is copied once. The parts of y are copied
/// for each part of x, but for the one that the last slab has left.
void try_order(Side x, Side y, size_t limit, const SlabCost& cost, double wave_us, Best* best) {
  const size_t least_y = y.bytes_of(std::min(y.grain, y.extent));
  if (least_y > limit) return;
  const int64_t most_x = x.largest(limit - least_y);
  if (most_x == 0) return;
  const int64_t least_parts = ceil_div(x.grains(), most_x);
  for (int64_t wanted = least_parts; wanted < least_parts + kMostCounts && wanted <= x.grains(); ++wanted) {
    const int64_t of_x = std::min(ceil_div(x.grains(), wanted) * x.grain, x.extent), parts = ceil_div(x.extent, of_x);
    const size_t x_bytes = x.bytes_of(of_x);
    const int64_t most_y = y.largest(limit - x_bytes);
    if (most_y == 0) continue;
    const auto consider = [&](int64_t grains) {
      const int64_t of_y = std::min(grains * y.grain, y.extent), count = parts * ceil_div(y.extent, of_y);
      const double waves = waves_of(x, of_x, y, of_y, 1, cost.at_once);
      const size_t y_bytes = y.bytes_of(of_y);
      const double copied = x.bytes_in_slabs(x_bytes, of_x, 1) + y.bytes_in_slabs(y_bytes, of_y, parts);
      const double us = waves * wave_us + copied * cost.us_per_byte + static_cast<double>(count) * cost.launch_us;
      if (us >= best->us) return;
      best->us = us;
      Slabs& s = best->slabs;
      s.count = count;
      s.m = x.is_rows ? of_x : of_y;
      s.n = x.is_rows ? of_y : of_x;
      s.rows_inside = y.is_rows;
      s.a_bytes = x.is_rows ? x_bytes : y_bytes;
      s.b_bytes = x.is_rows ? y_bytes : x_bytes;
      s.k = x.problem.k;
    };
    const int64_t least_inside = ceil_div(y.grains(), most_y);
    for (int64_t inside = least_inside; inside < least_inside + kMostInside && inside <= y.grains(); ++inside) {
      consider(ceil_div(y.grains(), inside));
    }
    const int64_t x_tiles = ceil_div(of_x, x.tile), full_waves = most_y * y.grain / y.tile * x_tiles / cost.at_once;
    const int64_t fullest = full_waves * cost.at_once / x_tiles * y.tile / y.grain;
    if (fullest > 0) consider(fullest);
  }
}

/// Divides one matrix of the batch. Slabs are whole tiles, or parts of a tile where whole ones do not fit.
Best slabs_of_matrix(const Problem& p, size_t limit, const SlabCost& cost, double wave_us, const CopiedBytes& bytes) {
  const auto halved = [](int64_t grain) { return std::max(kGrain, ceil_div(grain / 2, kGrain) * kGrain); };
  Best best;
  int64_t grain_m = ceil_div(cost.tile_m, kGrain) * kGrain, grain_n = ceil_div(cost.tile_n, kGrain) * kGrain;
  for (;;) {
    const Side rows{bytes, p, p.m, cost.tile_m, grain_m, true}, cols{bytes, p, p.n, cost.tile_n, grain_n, false};
    try_order(rows, cols, limit, cost, wave_us, &best);
    try_order(cols, rows, limit, cost, wave_us, &best);
    if (best.slabs.count > 0 || (grain_m == kGrain && grain_n == kGrain)) return best;
    grain_m = halved(grain_m);
    grain_n = halved(grain_n);
  }
}

/// The largest number of matrices along batch dimension `dim`, at most p.batch[dim], whose copies fit; 0 if there is
/// none.
int64_t most_matrices(Problem p, int dim, size_t limit, const CopiedBytes& bytes) {
  const auto fits = [&](int64_t matrices) {
    p.batch[dim] = matrices;
    return aligned(bytes.a(p)) + aligned(bytes.b(p)) <= limit;
  };
  int64_t most = 0, exceeds = p.batch[dim] + 1;
  while (exceeds - most > 1) {
    const int64_t middle = most + (exceeds - most) / 2;
    (fits(middle) ? most : exceeds) = middle;
  }
  return most;
}

/// A slab of whole matrices, as many as fit; count is 0 if not even one does. An operand that is broadcast is copied
/// once, at least along the inner dimension.
Slabs slabs_of_batch(const Problem& p, size_t limit, const CopiedBytes& bytes) {
  Problem part = p;
  part.batch[0] = 1;
  part.batch[1] = most_matrices(part, 1, limit, bytes);
  if (part.batch[1] == 0) return {};
  if (part.batch[1] == p.batch[1]) {
    part.batch[0] = p.batch[0];
    part.batch[0] = most_matrices(part, 0, limit, bytes);
  }
  Slabs s = one_slab(part, bytes);
  s.count = ceil_div(p.batch[0], s.batch[0]) * ceil_div(p.batch[1], s.batch[1]);
  return s;
}

}  // namespace

Slabs one_slab(const Problem& p, const CopiedBytes& bytes) {
  Slabs s;
  s.count = 1;
  for (int i = 0; i < 2; ++i) s.batch[i] = p.batch[i];
  s.m = p.m;
  s.n = p.n;
  s.k = p.k;
  s.a_bytes = aligned(bytes.a(p));
  s.b_bytes = aligned(bytes.b(p));
  return s;
}

Slabs slabs_of(const Problem& p, size_t limit, const SlabCost& cost, const CopiedBytes& bytes) {
  const int64_t tiles = ceil_div(p.m, cost.tile_m) * ceil_div(p.n, cost.tile_n);
  const double whole_waves = static_cast<double>(std::max<int64_t>(1, ceil_div(tiles * p.batches(), cost.at_once)));
  const double wave_us = cost.gemm_us / whole_waves;
  Slabs s = slabs_of_batch(p, limit, bytes);
  if (s.count == 1) return s;
  if (s.count > 0) {
    const auto waves = static_cast<double>(s.count * ceil_div(tiles * s.batch[0] * s.batch[1], cost.at_once));
    s.extra_us = std::max(0.0, waves - whole_waves) * wave_us + static_cast<double>(s.count - 1) * cost.launch_us;
    return s;
  }
  Problem one = p;
  one.batch[0] = one.batch[1] = 1;
  const Best best = slabs_of_matrix(one, limit, cost, wave_us, bytes);
  const Slabs whole = one_slab(p, bytes);
  const double whole_us =
      whole_waves * wave_us + static_cast<double>(whole.workspace()) * cost.us_per_byte + cost.launch_us;
  s = best.slabs;
  s.count *= p.batches();
  s.extra_us = std::max(0.0, best.us * static_cast<double>(p.batches()) - whole_us);
  return s;
}

bool any_slab_fits(const Problem& p, size_t limit, const CopiedBytes& bytes) {
  Problem thinnest = p;
  thinnest.batch[0] = thinnest.batch[1] = 1;
  thinnest.m = std::min(p.m, kGrain);
  thinnest.n = std::min(p.n, kGrain);
  return aligned(bytes.a(thinnest)) + aligned(bytes.b(thinnest)) <= limit;
}

Slabs slabs_of_k(const Problem& p, size_t limit, const CopiedBytes& bytes) {
  constexpr int64_t kGrainK = 256;  // whole lines, and whole segments of planes
  Problem part = p;
  const auto fits = [&](int64_t grains) {
    part.k = grains * kGrainK;
    return one_slab(part, bytes).workspace() <= limit;
  };
  int64_t most = 0, exceeds = ceil_div(p.k, kGrainK) + 1;
  while (exceeds - most > 1) {
    const int64_t middle = most + (exceeds - most) / 2;
    (fits(middle) ? most : exceeds) = middle;
  }
  if (most == 0) return {};
  const int64_t parts = ceil_div(p.k, most * kGrainK);
  part.k = ceil_div(ceil_div(p.k, parts), kGrainK) * kGrainK;
  Slabs s = one_slab(part, bytes);
  s.count = ceil_div(p.k, part.k);
  return s;
}

Problem part_of(const Problem& p, const Slabs& s, int64_t outer, int64_t inner, int64_t row, int64_t col) {
  Problem part = p;
  const int64_t at[2] = {outer, inner};
  for (int i = 0; i < 2; ++i) part.batch[i] = std::min(s.batch[i], p.batch[i] - at[i]);
  part.m = std::min(s.m, p.m - row);
  part.n = std::min(s.n, p.n - col);
  const auto step = [](const void* data, int64_t elements, DType dtype) {
    return const_cast<unsigned char*>(static_cast<const unsigned char*>(data) + elements * dtype_bytes(dtype));
  };
  const auto move = [&](Matrix* x, int64_t rows, int64_t cols, DType dtype) {
    if (x->data == nullptr) return;
    x->data = step(
        x->data, outer * x->batch_stride[0] + inner * x->batch_stride[1] + rows * x->row_stride + cols * x->col_stride,
        dtype);
  };
  move(&part.a, row, 0, p.dtype);
  move(&part.b, 0, col, p.dtype);
  move(&part.c, row, col, p.c_dtype);
  move(&part.d, row, col, p.out_dtype);
  if (p.bias != nullptr) part.bias = step(p.bias, col, p.dtype);
  if (p.pre_activation != nullptr) {
    Matrix saved = p.d;
    saved.data = p.pre_activation;
    move(&saved, row, col, p.out_dtype);
    part.pre_activation = saved.data;
  }
  return part;
}

Problem part_of_k(const Problem& p, int64_t first, int64_t k) {
  Problem part = p;
  part.k = std::min(k, p.k - first);
  const auto step = [&](Matrix* x, int64_t stride) {
    x->data = static_cast<unsigned char*>(x->data) + first * stride * dtype_bytes(p.dtype);
  };
  step(&part.a, p.a.col_stride);
  step(&part.b, p.b.row_stride);
  if (first > 0) {  // C and the bias are in D already
    part.c = p.d;
    part.c_dtype = p.out_dtype;
    part.beta = 1.0f;
    part.bias = nullptr;
  }
  if (first + k < p.k) {  // only the last part knows the argument of the activation
    part.act = Activation::kNone;
    part.pre_activation = nullptr;
  }
  return part;
}

}  // namespace hgemm::tile
