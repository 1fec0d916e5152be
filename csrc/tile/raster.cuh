// The raster order in which blocks walk the tiles of C (thread-block swizzle).
#pragma once

#include <cstdint>

namespace hgemm::tile {

struct TileCoord {
  int m, n;
};

/// The tile with number `id`, in column-major order inside panels of kGroup tile rows. Blocks that run at the same time
/// then cover a nearly square patch of C and share slices of A and B in L2, instead of streaming all of B for every row
/// of tiles.
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
