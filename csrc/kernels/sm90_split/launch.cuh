// Host side of sm90_split: from a Problem to its two launches.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <atomic>

#include "core/launch.cuh"
#include "kernels/sm90_split/config.h"
#include "kernels/sm90_split/planes.h"

#ifndef HGEMM_NO_SM90A
#include "kernels/sm90_split/kernel.cuh"
#include "tile/launch.cuh"
#include "tile/tensor_map.h"
#endif

namespace hgemm::sm90_split {

#ifdef HGEMM_NO_SM90A

template <class Config>
Status launch(const Problem&, const DeviceFacts&, void*, Stream) {
  return cudaErrorNoKernelImageForDevice;
}

#else

constexpr int kRasterRows = 2048;  // of C in a panel of the raster, as in sm90_wgmma

inline Status fill(const Side& side, int box_rows, int box_planes, OperandParams* o) {
  const Planes& planes = side.planes;
  o->step[0] = side.x.batch_stride[0] == 0 ? 0 : static_cast<int32_t>(planes.batch[1]);
  o->step[1] = side.x.batch_stride[1] == 0 ? 0 : 1;
  o->tiny = side.memory + planes.tiny_at;
  o->x = static_cast<const float*>(side.x.data);
  o->row = side.row;
  o->k_stride = side.k_stride;
  for (int i = 0; i < 2; ++i) o->batch[i] = side.x.batch_stride[i];
  o->rows = static_cast<int32_t>(planes.rows);
  o->pieces = static_cast<int32_t>(planes.pieces);
  const int64_t plane = planes.rows * planes.ld;
  return tensor_map({side.memory,
                     DType::kBF16,
                     planes.k,
                     planes.rows,
                     planes.ld,
                     {planes.batch[0] * planes.batch[1], kPlanes},
                     {kPlanes * plane, plane},
                     box_rows,
                     {1, box_planes}},
                    &o->planes);
}

template <class Config>
Status launch(const Problem& p, const DeviceFacts& facts, void* workspace, Stream stream_) {
  const auto stream = static_cast<cudaStream_t>(stream_);
  const Side a = side_a(p, workspace), b = side_b(p, workspace);
  if (const Status e = launch_split(p, workspace, stream)) return e;

  const auto units = [](int64_t extent, int tile) { return static_cast<uint32_t>((extent + tile - 1) / tile); };
  const uint32_t units_m = units(p.m, Config::BM * Config::CM), units_n = units(p.n, Config::BN);
  Params params{};
  if (const Status e = fill(a, Config::BM, kPlanes, &params.a)) return e;
  if (const Status e = fill(b, Config::BN / Config::CM, 1, &params.b)) return e;
  params.k = static_cast<int>(p.k);
  params.units = units_m * units_n * static_cast<uint32_t>(p.batches());
  params.raster = tile::raster_of(units_m, units_n, kRasterRows / (Config::BM * Config::CM));
  params.batch_inner = FastDivisor(static_cast<uint32_t>(p.batch[1]));
  params.epilogue = tile::epilogue_params(p, nullptr);
  const auto is_even = [](int64_t x) { return x % 2 == 0; };
  params.pairs = reinterpret_cast<uintptr_t>(p.d.data) % 8 == 0 &&
                 reinterpret_cast<uintptr_t>(p.pre_activation) % 8 == 0 && is_even(p.d.row_stride) &&
                 is_even(p.d.batch_stride[0]) && is_even(p.d.batch_stride[1]);

  static std::atomic<uint64_t> smem_allowed{0};
  if (const cudaError_t e = allow_smem(kernel<Config>, Config::kSmemBytes, smem_allowed); e != cudaSuccess) return e;
  cudaLaunchAttribute attributes[2]{};
  attributes[0].id = cudaLaunchAttributeClusterDimension;
  attributes[0].val.clusterDim = {Config::CM, 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = std::min(params.units, static_cast<uint32_t>(facts.sm_count / Config::CM)) * Config::CM;
  config.blockDim = Config::kThreads;
  config.dynamicSmemBytes = Config::kSmemBytes;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = 1;
  tile::allow_early_start(&config);
  return cudaLaunchKernelEx(&config, kernel<Config>, params);
}

#endif

}  // namespace hgemm::sm90_split
