// The host side of simt_gemv: turns a Problem into a launch.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <atomic>

#include "core/launch.cuh"
#include "kernels/simt_gemv/config.h"
#include "kernels/simt_gemv/kernel.cuh"
#include "tile/counters.h"
#include "tile/short_side.h"

namespace hgemm::simt_gemv {

/// Enqueues the kernel for these Traits.
template <class Traits>
cudaError_t launch_traits(const Problem& p, const Schedule& s, Params params, cudaStream_t stream) {
  static std::atomic<uint64_t> smem_allowed{0};
  auto* const k = kernel<Traits>;
  if (const cudaError_t e = allow_smem(k, Traits::kSmemBytes, smem_allowed)) return e;
  params.slot = tile::slot_for(stream, s.slices, s.tiles * p.batches());
  const dim3 grid(s.tiles, params.slot >= 0 ? s.slices : 1, static_cast<unsigned>(p.batches()));
  const int smem = std::max(s.warps * Traits::COLS * s.tile_rows, kThreads) * 4;
  return enqueue_clusters(k, grid, kThreads, smem, 1, s.dependent, stream, params);
}

template <class Config>
Status launch(const Problem& p, const Schedule& s, void* workspace, Stream stream_) {
  const auto stream = static_cast<cudaStream_t>(stream_);
  const ShortSide sides = short_side_of(p);
  Params params{};
  tile::set_operands(p, sides, &params);
  params.lanes = s.lanes;
  params.warps = s.warps;
  while (1 << params.log2_rows < s.tile_rows) ++params.log2_rows;
  params.slice_k = s.slice_k;
  params.slices = s.slices;
  params.partial = static_cast<float*>(workspace);
  params.epilogue = tile::epilogue_params(p, nullptr);
  return sides.w_major == Major::kK ? launch_traits<Traits<Config, Major::kK>>(p, s, params, stream)
                                    : launch_traits<Traits<Config, Major::kMN>>(p, s, params, stream);
}

}  // namespace hgemm::simt_gemv
