// The host side of batched_gemv: turns a Problem into a launch.
#pragma once

#include <cuda_runtime.h>

#include "core/convert.cuh"
#include "core/launch.cuh"
#include "kernels/batched_gemv/config.h"
#include "kernels/batched_gemv/kernel.cuh"
#include "tile/short_side.h"

namespace hgemm::batched_gemv {

/// Enqueues the kernel for these Traits.
template <class Traits>
cudaError_t launch_traits(const Schedule& s, const Params& params, cudaStream_t stream) {
  const int warps = s.teams * s.warps;
  return enqueue_clusters(kernel<Traits>, dim3(static_cast<unsigned>(s.blocks)), 32 * warps, warps * s.width * 4, 1,
                          s.dependent, stream, params);
}

/// The same for the memory order of W and the loads of the schedule.
template <class Config, class T>
cudaError_t launch_order(bool k_major, const Schedule& s, const Params& params, cudaStream_t stream) {
  constexpr int kWide = 16;
  if constexpr (sizeof(T) == 4) {
    if (s.bytes == 4) {
      return launch_traits<Traits<Config, T, Major::kK, 4, loads_of(Config::LOADS, 4)>>(s, params, stream);
    }
  }
  if (!k_major) return launch_traits<Traits<Config, T, Major::kMN, kWide, 1>>(s, params, stream);
  if (s.rows == kFewRows) return launch_traits<Traits<Config, T, Major::kK, kWide, kFewRows>>(s, params, stream);
  return launch_traits<Traits<Config, T, Major::kK, kWide, Config::LOADS>>(s, params, stream);
}

template <class Config, DType kDType>
Status launch(const Problem& p, const Schedule& s, Stream stream_) {
  using T = ElementOf<kDType>;
  const auto stream = static_cast<cudaStream_t>(stream_);
  const ShortSide sides = short_side_of(p);
  const bool k_major = sides.w_major == Major::kK;
  Params params{};
  tile::set_operands(p, sides, &params);
  while (1 << params.log2_lanes < s.lanes) ++params.log2_lanes;
  while (1 << params.log2_warps < s.warps) ++params.log2_warps;
  params.width = s.width;
  params.all_tiles = static_cast<uint32_t>(s.all_tiles);
  params.tiles = FastDivisor(static_cast<uint32_t>(s.tiles));
  params.inner = FastDivisor(params.batch_inner);
  params.wide_x = s.wide_x;
  params.epilogue = tile::epilogue_params(p, nullptr);
  params.plain =
      params.epilogue.c == nullptr && p.bias == nullptr && p.act == Activation::kNone && p.pre_activation == nullptr;
  return launch_order<Config, T>(k_major, s, params, stream);
}

}  // namespace hgemm::batched_gemv
