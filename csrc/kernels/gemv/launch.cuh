// The host side of gemv: turns a Problem into a launch.
#pragma once

#include <cuda_runtime.h>

#include <atomic>

#include "core/convert.cuh"
#include "core/launch.cuh"
#include "kernels/gemv/config.h"
#include "kernels/gemv/kernel.cuh"
#include "tile/counters.h"
#include "tile/short_side.h"

namespace hgemm::gemv {

/// Enqueues the kernel for these Traits.
template <class Traits>
cudaError_t launch_traits(const Problem& p, const Schedule& s, Params params, cudaStream_t stream) {
  static std::atomic<uint64_t> smem_allowed{0};
  auto* const k = kernel<Traits>;
  if (const cudaError_t e = allow_smem(k, Traits::kSmemBytes, smem_allowed)) return e;
  params.slot = tile::slot_for(stream, s.slices, s.tiles * p.batches());
  const dim3 grid(static_cast<unsigned>(s.tiles), params.slot >= 0 ? s.slices : 1, static_cast<unsigned>(p.batches()));
  const int smem = Traits::kSumFloats * 4 + Traits::COLS * s.slice_k * 2;
  return enqueue_clusters(k, grid, kThreads, smem, 1, s.dependent, stream, params);
}

template <class Config, DType kDType>
Status launch(const Problem& p, const Schedule& s, void* workspace, Stream stream_) {
  using T = ElementOf<kDType>;
  const auto stream = static_cast<cudaStream_t>(stream_);
  const ShortSide sides = short_side_of(p);
  const bool k_major = sides.w_major == Major::kK;
  Params params{};
  tile::set_operands(p, sides, &params);
  params.lanes = s.lanes;
  params.warps = s.warps;
  params.passes = s.passes;
  params.units = s.slice_k / unit_k(k_major, s.lanes, s.warps);
  params.tile_rows = s.tile_rows;
  params.slice_k = s.slice_k;
  params.slices = s.slices;
  params.releases_early = s.releases_early;
  params.partial = static_cast<float*>(workspace);
  params.epilogue = tile::epilogue_params(p, nullptr);
  if (k_major) {
    return sides.wide ? launch_traits<Traits<Config, T, Major::kK, false>>(p, s, params, stream)
                      : launch_traits<Traits<Config, T, Major::kK, true>>(p, s, params, stream);
  }
  return sides.wide ? launch_traits<Traits<Config, T, Major::kMN, false>>(p, s, params, stream)
                    : launch_traits<Traits<Config, T, Major::kMN, true>>(p, s, params, stream);
}

}  // namespace hgemm::gemv
