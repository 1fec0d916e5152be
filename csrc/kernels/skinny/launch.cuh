// The host side of skinny: turns a Problem into a launch.
#pragma once

#include <cuda_runtime.h>

#include <atomic>

#include "core/convert.cuh"
#include "core/launch.cuh"
#include "kernels/skinny/config.h"
#include "kernels/skinny/kernel.cuh"
#include "tile/short_side.h"

namespace hgemm::skinny {

/// Enqueues the kernel for these Traits.
template <class Traits>
cudaError_t launch_traits(const Problem& p, const Schedule& s, const Params& params, cudaStream_t stream) {
  static std::atomic<uint64_t> smem_allowed{0};
  auto* const k = kernel<Traits>;
  if (const cudaError_t e = allow_smem(k, Traits::kSmemBytes, smem_allowed)) return e;
  const dim3 grid(s.tiles, params.splits, static_cast<unsigned>(p.batches()));
  return enqueue_clusters(k, grid, Traits::kThreads, Traits::kSmemBytes, params.splits, s.dependent, stream, params);
}

template <class Config, DType kDType>
Status launch(const Problem& p, const Schedule& s, Stream stream_) {
  using T = ElementOf<kDType>;
  const auto stream = static_cast<cudaStream_t>(stream_);
  const ShortSide sides = short_side_of(p);
  Params params{};
  tile::set_operands(p, sides, &params);
  params.tile_rows = s.tile_rows;
  params.splits = has_sm90_code() ? s.splits : 1;
  params.releases_early = s.releases_early;
  params.interleaved = s.interleaved;
  params.epilogue = tile::epilogue_params(p, nullptr);
  if (sides.w_major == Major::kK) {
    return sides.wide ? launch_traits<Traits<Config, T, Major::kK, false>>(p, s, params, stream)
                      : launch_traits<Traits<Config, T, Major::kK, true>>(p, s, params, stream);
  }
  return sides.wide ? launch_traits<Traits<Config, T, Major::kMN, false>>(p, s, params, stream)
                    : launch_traits<Traits<Config, T, Major::kMN, true>>(p, s, params, stream);
}

}  // namespace hgemm::skinny
