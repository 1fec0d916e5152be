// The host side of the float32 kernels: turns a Problem into a launch.
#pragma once

#include <cuda_runtime.h>

#include <atomic>

#include "core/launch.cuh"
#include "kernels/batched_mma/sm90_split_config.h"

#ifndef HGEMM_NO_SM90A
#include "kernels/batched_mma/sm90_split_kernel.cuh"
#endif

namespace hgemm::batched_split {

#ifdef HGEMM_NO_SM90A

template <class Config>
Status launch(const Problem&, const Schedule&, Stream) {
  return cudaErrorNoKernelImageForDevice;
}

#else

/// Enqueues the kernel for these memory orders of A and B.
template <class Config, Major kA, Major kB, bool kWide>
cudaError_t launch_majors(const Schedule& s, const Params& params, cudaStream_t stream) {
  using Of = Traits<Config, kA, kB, kWide>;
  static std::atomic<uint64_t> smem_allowed{0};
  auto* const k = kernel<Of>;
  if (const cudaError_t e = allow_smem(k, Of::kSmemBytes, smem_allowed)) return e;
  return enqueue_clusters(k, dim3(s.blocks), Of::kThreads, Of::kSmemBytes, 1, s.dependent, stream, params);
}

/// Chooses the kernel for the memory orders of A and B.
template <class Config, bool kWide>
cudaError_t launch_kernel(const Problem& p, const Schedule& s, const Params& params, cudaStream_t stream) {
  const bool ka = p.a_major() == Major::kK, kb = p.b_major() == Major::kK;
  if (ka && kb) return launch_majors<Config, Major::kK, Major::kK, kWide>(s, params, stream);
  if (ka) return launch_majors<Config, Major::kK, Major::kMN, kWide>(s, params, stream);
  if (kb) return launch_majors<Config, Major::kMN, Major::kK, kWide>(s, params, stream);
  return launch_majors<Config, Major::kMN, Major::kMN, kWide>(s, params, stream);
}

template <class Config>
Status launch(const Problem& p, const Schedule& s, Stream stream_) {
  const auto stream = static_cast<cudaStream_t>(stream_);
  const auto tiles = [](int64_t extent, int tile) { return static_cast<uint32_t>((extent + tile - 1) / tile); };
  Params params{};
  params.a = static_cast<const float*>(p.a.data);
  params.b = static_cast<const float*>(p.b.data);
  params.lda = p.lda();
  params.ldb = p.ldb();
  params.pitch_a = static_cast<int>(4 * params.lda);
  params.pitch_b = static_cast<int>(4 * params.ldb);
  for (int i = 0; i < 2; ++i) {
    params.a_batch[i] = p.a.batch_stride[i];
    params.b_batch[i] = p.b.batch_stride[i];
  }
  params.m = static_cast<int>(p.m);
  params.n = static_cast<int>(p.n);
  params.k = static_cast<int>(p.k);
  params.tiles_m = FastDivisor(tiles(p.m, Config::BM));
  params.tiles_n = FastDivisor(tiles(p.n, Config::BN));
  params.batch_inner = FastDivisor(static_cast<uint32_t>(p.batch[1]));
  params.tiles = params.tiles_m.divisor() * params.tiles_n.divisor() * static_cast<uint32_t>(p.batches());
  params.epilogue = tile::epilogue_params(p, nullptr);
  params.is_plain =
      params.epilogue.c == nullptr && p.bias == nullptr && p.act == Activation::kNone && p.pre_activation == nullptr;
  params.wide_d = params.epilogue.wide_d && p.n % 4 == 0;
  return is_wide(p) ? launch_kernel<Config, true>(p, s, params, stream)
                    : launch_kernel<Config, false>(p, s, params, stream);
}

#endif

}  // namespace hgemm::batched_split
