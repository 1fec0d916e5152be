// The raster order of grouped_raster (raster.cuh) for kernels whose blocks compute many tiles each, with batches. The
// divisors are known at launch.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/fast_divisor.h"
#include "core/host_device.h"

namespace hgemm::tile {

/// Column-major order inside panels of `group` units of M. A unit is a work tile, or the cluster tile if a cluster
/// shares several tiles.
struct Raster {
  FastDivisor per_batch, per_panel;
  FastDivisor group, last_group;  // units of M in a panel, and in the last panel
  uint32_t last_panel;
};
struct RasterUnit {
  uint32_t batch, row, col;
};

inline Raster raster_of(uint32_t units_m, uint32_t units_n, uint32_t group) {
  const uint32_t last_panel = (units_m - 1) / group;
  // With a single panel the height of a full panel does not matter: the panel is the last one, and no unit lies beyond
  // it.
  const uint64_t per_panel = std::min(uint64_t{group} * units_n, uint64_t{units_m} * units_n);
  Raster raster{};
  raster.per_batch = FastDivisor(units_m * units_n);
  raster.per_panel = FastDivisor(static_cast<uint32_t>(per_panel));
  raster.group = FastDivisor(group);
  raster.last_group = FastDivisor(units_m - last_panel * group);
  raster.last_panel = last_panel;
  return raster;
}

HGEMM_HOST_DEVICE inline RasterUnit unit_at(const Raster& raster, uint32_t id) {
  const uint32_t batch = raster.per_batch.quotient(id), in_batch = id - batch * raster.per_batch.divisor();
  const uint32_t panel = raster.per_panel.quotient(in_batch), in_panel = in_batch - panel * raster.per_panel.divisor();
  const FastDivisor& height = panel == raster.last_panel ? raster.last_group : raster.group;
  const uint32_t col = height.quotient(in_panel);
  return {batch, panel * raster.group.divisor() + in_panel - col * height.divisor(), col};
}

}  // namespace hgemm::tile
