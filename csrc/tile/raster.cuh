// Order in which blocks walk the tiles of C (thread-block swizzle).
#pragma once

#include <cstdint>

namespace hgemm::tile {

struct TileCoord {
  int m, n;
};

/// Column-major inside panels of kGroup tile rows: the blocks that run together cover a square-ish patch of C and share
/// A and B slices in L2 instead of streaming the whole of B for every row of tiles.
template <int kGroup = 16>
__device__ __forceinline__ TileCoord grouped_raster(uint32_t id, uint32_t tiles_m, uint32_t tiles_n) {
  const uint32_t per_panel = kGroup * tiles_n;
  const uint32_t panel = id / per_panel;
  const uint32_t first = panel * kGroup;
  const uint32_t height = min(static_cast<uint32_t>(kGroup), tiles_m - first);
  const uint32_t in_panel = id - panel * per_panel;
  return {static_cast<int>(first + in_panel % height), static_cast<int>(in_panel / height)};
}

}  // namespace hgemm::tile
