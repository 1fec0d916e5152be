// The host side of simt_skinny: turns a Problem into a launch.
#pragma once

#include <cuda_runtime.h>

#include <atomic>

#include "core/launch.cuh"
#include "kernels/simt_skinny/config.h"
#include "kernels/simt_skinny/kernel.cuh"
#include "tile/counters.h"
#include "tile/short_side.h"

namespace hgemm::simt_skinny {

/// Enqueues the kernel for these Traits.
template <class Traits>
cudaError_t launch_traits(const Problem& p, const Schedule& s, Params params, cudaStream_t stream) {
  static std::atomic<uint64_t> smem_allowed{0};
  auto* const k = kernel<Traits>;
  if (const cudaError_t e = allow_smem(k, Traits::kSmemBytes, smem_allowed)) return e;
  params.slot = tile::slot_for(stream, s.slices, s.tiles * p.batches());
  const dim3 grid(s.tiles, params.slot >= 0 ? s.slices : 1, static_cast<unsigned>(p.batches()));
  return enqueue_clusters(k, grid, kThreads, Traits::kSmemBytes, 1, s.dependent, stream, params);
}

template <class Config>
Status launch(const Problem& p, const Schedule& s, void* workspace, Stream stream_) {
  const auto stream = static_cast<cudaStream_t>(stream_);
  const ShortSide sides = short_side_of(p);
  const int alignment_w = sides.swapped ? alignment_a(p) : alignment_b(p);
  const int alignment_x = sides.swapped ? alignment_b(p) : alignment_a(p);
  Params params{};
  tile::set_operands(p, sides, &params);
  params.slice_k = s.slice_k;
  params.slices = s.slices;
  params.wide_x = sides.x_major == Major::kK && alignment_x == 16;
  params.partial = static_cast<float*>(workspace);
  params.epilogue = tile::epilogue_params(p, nullptr);
  if (sides.w_major == Major::kK) {
    return alignment_w == 16 ? launch_traits<Traits<Config, Major::kK, false>>(p, s, params, stream)
                             : launch_traits<Traits<Config, Major::kK, true>>(p, s, params, stream);
  }
  return alignment_w == 16 ? launch_traits<Traits<Config, Major::kMN, false>>(p, s, params, stream)
                           : launch_traits<Traits<Config, Major::kMN, true>>(p, s, params, stream);
}

}  // namespace hgemm::simt_skinny
