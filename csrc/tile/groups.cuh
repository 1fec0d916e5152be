// Grouped products for kernels whose blocks compute one output tile each: which tile of which group a block computes,
// found on the device, and the group's matrices. All forms and orders of the operands are one case here.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/ceil_div.h"
#include "core/grouped.h"
#include "tile/raster.cuh"

namespace hgemm::tile {

/// A matrix of a grouped product. Strides count elements.
struct GroupedMatrix {
  const void* data;
  int64_t row, col;  // from one row, and from one column, to the next
  int64_t step;      // from one index of the divided dimension to the next; 0 where the matrix is not divided
  int64_t group;     // from one group's matrix to the next; 0 where the groups share one
};

/// A grouped product as a kernel takes it. `ends` and what is divided: as in GroupedProduct.
struct GroupParams {
  GroupedMatrix a, b, d;
  const int32_t* ends;
  Divided divided;
  int groups;
  int m, n, k;                // of all groups together
  uint32_t tiles_m, tiles_n;  // output tiles of an undivided extent
};

/// The output tile of a block, in the product of one group.
struct GroupTile {
  int m, n, k;      // the extents of the group's product
  int64_t a, b, d;  // the elements before the group's matrices
  int m0, n0;       // the tile's first row and column
};

inline GroupParams group_params(const GroupedProduct& grouped, int bm, int bn) {
  const Problem& p = grouped.product;
  const bool rows = grouped.divided == Divided::kRows, columns = grouped.divided == Divided::kColumns,
             inner = grouped.divided == Divided::kInner;
  const auto matrix = [](const Matrix& x, int64_t step) {
    return GroupedMatrix{
        .data = x.data, .row = x.row_stride, .col = x.col_stride, .step = step, .group = x.batch_stride[1]};
  };
  GroupParams params{};
  params.a = matrix(p.a, rows ? p.a.row_stride : inner ? p.a.col_stride : 0);
  params.b = matrix(p.b, columns ? p.b.col_stride : inner ? p.b.row_stride : 0);
  params.d = matrix(p.d, rows ? p.d.row_stride : columns ? p.d.col_stride : 0);
  params.ends = grouped.ends;
  params.divided = grouped.divided;
  params.groups = static_cast<int>(p.batch[1]);
  params.m = static_cast<int>(p.m);
  params.n = static_cast<int>(p.n);
  params.k = static_cast<int>(p.k);
  params.tiles_m = static_cast<uint32_t>(ceil_div(p.m, bm));
  params.tiles_n = static_cast<uint32_t>(ceil_div(p.n, bn));
  return params;
}

/// The most output tiles that groups with valid ends have: the number of blocks of a launch.
inline int64_t most_group_tiles(const GroupedProduct& grouped, int bm, int bn) {
  const Problem& p = grouped.product;
  const auto divided = [&p](int64_t extent, int size) { return extent / size + std::min(extent, p.batch[1]); };
  switch (grouped.divided) {
    case Divided::kRows: return divided(p.m, bm) * ceil_div(p.n, bn);
    case Divided::kColumns: return divided(p.n, bn) * ceil_div(p.m, bm);
    default: return ceil_div(p.m, bm) * ceil_div(p.n, bn) * p.batch[1];
  }
}

/// A range of the divided dimension, and the output tile in it.
struct GroupRange {
  int group, begin, end;
  uint32_t tile;
};

/// The range of a group. Ends that decrease, or lie beyond `extent`, are errors of the caller: the range lies within
/// the extent even then.
__device__ __forceinline__ GroupRange range_of(const GroupParams& p, int group, int extent) {
  const int begin = group == 0 ? 0 : min(max(__ldg(p.ends + group - 1), 0), extent);
  return {group, begin, min(max(__ldg(p.ends + group), begin), extent), 0};
}

/// Finds the group of output tile `id`, where a group has `across` tiles for each `size` indices that it has of the
/// divided dimension. All threads of a warp call it with the same `id`. Returns false where the groups have fewer
/// tiles.
__device__ __forceinline__ bool find_group(const GroupParams& p, int extent, int size, uint32_t across, uint32_t id,
                                           GroupRange* found) {
  constexpr int kEach = 4;  // consecutive groups of a lane
  const int lane = threadIdx.x % 32;
  uint32_t before = 0;
  for (int first = 0; first < p.groups; first += 32 * kEach) {
    uint32_t tiles[kEach], sum = 0;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int g = first + lane * kEach + i;
      tiles[i] = 0;
      if (g < p.groups) {
        const GroupRange range = range_of(p, g, extent);
        tiles[i] = static_cast<uint32_t>(range.end - range.begin + size - 1) / size * across;
      }
      sum += tiles[i];
    }
    uint32_t upto = sum;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const uint32_t other = __shfl_up_sync(~0u, upto, step);
      if (lane >= step) upto += other;
    }
    const uint32_t behind = __ballot_sync(~0u, before + upto > id);
    if (behind != 0) {
      const int owner = __ffs(static_cast<int>(behind)) - 1;
      uint32_t at = id - before - (upto - sum);  // of the owner: the tile's index among those of its groups
      int group = first + lane * kEach;
#pragma unroll
      for (int i = 0; i < kEach - 1; ++i) {
        if (at >= tiles[i] && group == first + lane * kEach + i) {
          at -= tiles[i];
          ++group;
        }
      }
      *found = range_of(p, __shfl_sync(~0u, group, owner), extent);
      found->tile = __shfl_sync(~0u, at, owner);
      return true;
    }
    before += __shfl_sync(~0u, upto, 31);
  }
  return false;
}

/// The output tile of this block. Returns false where it has none. In a group, blocks go through panels of rows column
/// by column (tile/raster.cuh).
template <int BM, int BN>
__device__ __forceinline__ bool tile_of_block(const GroupParams& p, GroupTile* tile) {
  GroupRange range;
  uint32_t tiles_m = p.tiles_m, tiles_n = p.tiles_n;
  *tile = {};
  tile->m = p.m, tile->n = p.n, tile->k = p.k;
  if (p.divided == Divided::kInner) {
    range = range_of(p, static_cast<int>(blockIdx.x / (tiles_m * tiles_n)), p.k);
    range.tile = blockIdx.x % (tiles_m * tiles_n);
    tile->k = range.end - range.begin;
  } else if (p.divided == Divided::kRows) {
    if (!find_group(p, p.m, BM, tiles_n, blockIdx.x, &range)) return false;
    tile->m = range.end - range.begin;
    tiles_m = static_cast<uint32_t>(tile->m + BM - 1) / BM;
  } else {
    if (!find_group(p, p.n, BN, tiles_m, blockIdx.x, &range)) return false;
    tile->n = range.end - range.begin;
    tiles_n = static_cast<uint32_t>(tile->n + BN - 1) / BN;
  }
  const TileCoord coord = grouped_raster(range.tile, tiles_m, tiles_n);
  tile->m0 = coord.m * BM;
  tile->n0 = coord.n * BN;
  const auto before = [&range](const GroupedMatrix& x) { return range.begin * x.step + range.group * x.group; };
  tile->a = before(p.a);
  tile->b = before(p.b);
  tile->d = before(p.d);
  return true;
}

}  // namespace hgemm::tile
