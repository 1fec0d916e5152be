// Host side of sm90_split: from a Problem to its two launches.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <atomic>

#include "core/launch.cuh"
#include "kernels/sm90_split/config.h"

#ifndef HGEMM_NO_SM90A
#include "kernels/sm90_split/kernel.cuh"
#include "tile/plane_map.h"
#include "tile/split_planes.h"
#endif

namespace hgemm::sm90_split {

#ifdef HGEMM_NO_SM90A

template <class Config>
Status launch(const Problem&, const DeviceFacts&, const Schedule&, const tile::split::Memory&, Stream) {
  return cudaErrorNoKernelImageForDevice;
}

#else

constexpr int kRasterRows = 2048;  // rows of C in a panel of the raster order, as in sm90_wgmma

template <class Config>
Status launch(const Problem& p, const DeviceFacts& facts, const Schedule& s, const split::Memory& memory,
              Stream stream_) {
  const auto stream = static_cast<cudaStream_t>(stream_);
  const split::Side a = split::side_a(p, memory, Config::kPlanes);
  const split::Side b = split::side_b(p, memory, Config::kPlanes);
  Params params{};
  params.rest = FastDivisor(static_cast<uint32_t>(std::max(s.rest, 1)));
  params.slices = static_cast<uint32_t>(s.slices);
  params.slice_steps = s.steps;
  params.sums = reinterpret_cast<float*>(memory.rest);
  params.counters = reinterpret_cast<unsigned*>(memory.rest + s.sums_bytes({Config::BM, Config::BN}));
  const Status passed = Config::kScales
                            ? split::launch_scaled_pass(p, facts, memory, params.counters, s.counters(), stream)
                            : split::launch_pass(p, memory, params.counters, s.counters(), stream);
  if (passed) return passed;

  const auto tiles = [](int64_t extent, int tile) { return static_cast<uint32_t>((extent + tile - 1) / tile); };
  const uint32_t units_m = tiles(p.m, Config::BM * Config::CM), units_n = tiles(p.n, Config::BN);
  constexpr DType kType = Config::kScales ? DType::kF16 : DType::kBF16;
  constexpr int kPlanes = Config::kPlanes;
  if (const Status e = split::map_planes(a, kType, kPlanes, Config::BM, kPlanes, &params.planes_a)) return e;
  if (const Status e = split::map_planes(b, kType, kPlanes, Config::BN / Config::CM, 1, &params.planes_b)) return e;
  constexpr int kTileRows = Config::BM * Config::CM, kPanel = kRasterRows / kTileRows;
  params.product = split::product_of(p, a, b, memory.changed);
  params.scaled_a = split::scaled_of(a);
  params.scaled_b = split::scaled_of(b);
  params.inaccurate = memory.inaccurate;
  params.raster = tile::raster_of(units_m, units_n, kPanel);
  params.is_triangle = split::is_triangle(p, memory.changed);
  if (params.is_triangle) params.triangle = tile::triangle_of(p.n, kTileRows, Config::BN, kPanel);
  const uint32_t units = params.is_triangle ? params.triangle.per_batch.divisor() : units_m * units_n;
  params.whole = units * static_cast<uint32_t>(p.batches()) - static_cast<uint32_t>(s.rest);
  params.units = params.whole + static_cast<uint32_t>(s.rest * s.slices);

  static std::atomic<uint64_t> smem_allowed{0};
  if (const cudaError_t e = allow_smem(kernel<Config>, Config::kSmemBytes, smem_allowed); e != cudaSuccess) return e;
  cudaLaunchAttribute attributes[2]{};
  attributes[0].id = cudaLaunchAttributeClusterDimension;
  attributes[0].val.clusterDim = {Config::CM, 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = std::min(params.units, static_cast<uint32_t>(std::max(1, facts.sm_count / Config::CM))) * Config::CM;
  config.blockDim = Config::kThreads;
  config.dynamicSmemBytes = Config::kSmemBytes;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = 1;
  allow_early_start(&config);
  return cudaLaunchKernelEx(&config, kernel<Config>, params);
}

#endif

}  // namespace hgemm::sm90_split
