// The host side of sm80_split: turns a Problem into two launches, the pass that makes the planes and the GEMM.
#pragma once

#include <cuda_runtime.h>

#include <atomic>

#include "core/launch.cuh"
#include "kernels/sm80_split/config.h"
#include "kernels/sm80_split/kernel.cuh"

namespace hgemm::sm80_split {

constexpr int kRasterRows = 2048;  // rows of C in a panel of the raster order

inline PlanesParams planes_params(const split::Side& side) {
  const split::Planes& planes = side.planes;
  return {reinterpret_cast<const uint16_t*>(side.memory), planes.rows * planes.ld, planes.ld};
}

template <class Config>
Status launch(const Problem& p, const DeviceFacts& facts, const split::Memory& memory, Stream stream_) {
  const auto stream = static_cast<cudaStream_t>(stream_);
  const split::Side a = split::side_a(p, memory, Config::kPlanes), b = split::side_b(p, memory, Config::kPlanes);
  const Status passed = Config::kScales ? split::launch_scaled_pass(p, facts, memory, nullptr, 0, stream)
                                        : split::launch_pass(p, memory, nullptr, 0, stream);
  if (passed) return passed;
  const auto tiles = [](int64_t extent, int tile) { return static_cast<uint32_t>((extent + tile - 1) / tile); };
  const uint32_t tiles_m = tiles(p.m, Config::BM), tiles_n = tiles(p.n, Config::BN);
  Params params{};
  params.a = planes_params(a);
  params.b = planes_params(b);
  params.product = split::product_of(p, a, b, memory.changed);
  if (Config::kScales) {
    params.scaled_a = split::scaled_of(a);
    params.scaled_b = split::scaled_of(b);
  }
  params.inaccurate = memory.inaccurate;
  params.raster = tile::raster_of(tiles_m, tiles_n, kRasterRows / Config::BM);
  params.is_triangle = split::is_triangle(p, memory.changed);
  if (params.is_triangle) params.triangle = tile::triangle_of(p.n, Config::BM, Config::BN, kRasterRows / Config::BM);
  const uint32_t of_matrix = params.is_triangle ? params.triangle.per_batch.divisor() : tiles_m * tiles_n;
  static std::atomic<uint64_t> smem_allowed{0};
  if (const cudaError_t e = allow_smem(kernel<Config>, Config::kSmemBytes, smem_allowed); e != cudaSuccess) return e;
  const dim3 grid(of_matrix * static_cast<uint32_t>(p.batches()));
  return enqueue_clusters(kernel<Config>, grid, Config::kThreads, Config::kSmemBytes, 1, true, stream, params);
}

}  // namespace hgemm::sm80_split
