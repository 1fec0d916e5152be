// The host side of sm80_mma: turns a Problem into a launch.
#pragma once

#include <cuda_runtime.h>

#include <atomic>

#include "core/convert.cuh"
#include "core/launch.cuh"
#include "kernels/sm80_mma/config.h"
#include "kernels/sm80_mma/kernel.cuh"

namespace hgemm::sm80_mma {

/// Enqueues the kernel for these Traits.
template <class Traits>
cudaError_t launch_traits(const Params& params, cudaStream_t stream) {
  static std::atomic<uint64_t> smem_allowed{0};
  auto* const k = kernel<Traits>;
  if (cudaError_t e = allow_smem(k, Traits::kSmemBytes, smem_allowed); e != cudaSuccess) return e;
  const int64_t blocks = static_cast<int64_t>(params.tiles_m) * params.tiles_n * params.splits * params.batches;
  return enqueue(k, static_cast<unsigned>(blocks), Traits::kThreads, Traits::kSmemBytes, stream, params);
}

/// Chooses between the kernels for wide and for other operands. A Carried kernel for other operands reads wide ones,
/// too, which saves the time to compile a kernel for these.
template <class Config, class T, Major kMajorA, Major kMajorB>
cudaError_t launch_majors(const Params& params, cudaStream_t stream) {
  if constexpr (!Config::kCarries) {
    if (params.wide_a && params.wide_b) {
      return launch_traits<Traits<Config, T, kMajorA, kMajorB, false>>(params, stream);
    }
  }
  if constexpr (Config::kUnaligned == Unaligned::kNarrow) {
    return launch_traits<Traits<Config, T, kMajorA, kMajorB, true>>(params, stream);
  }
  return cudaErrorInvalidValue;
}

template <class Config, DType kDType>
Status launch(const Problem& p, Schedule schedule, void* workspace, Stream stream_) {
  using T = ElementOf<kDType>;
  const auto stream = static_cast<cudaStream_t>(stream_);
  const int splits = schedule.splits;
  float* const partial = splits > 1 ? static_cast<float*>(workspace) : nullptr;
  Params params{};
  params.a = p.a.data;
  params.b = p.b.data;
  params.lda = p.lda();
  params.ldb = p.ldb();
  for (int i = 0; i < 2; ++i) {
    params.a_batch[i] = p.a.batch_stride[i];
    params.b_batch[i] = p.b.batch_stride[i];
  }
  params.m = static_cast<int>(p.m);
  params.n = static_cast<int>(p.n);
  params.k = static_cast<int>(p.k);
  params.tiles_m = static_cast<uint32_t>((p.m + Config::BM - 1) / Config::BM);
  params.tiles_n = static_cast<uint32_t>((p.n + Config::BN - 1) / Config::BN);
  params.splits = static_cast<uint32_t>(splits);
  params.in_slices = schedule.in_slices;
  params.batches = p.batches();
  params.wide_a = schedule.padded || is_wide_a(p);
  params.wide_b = schedule.padded || is_wide_b(p);
  params.epilogue = tile::epilogue_params(p, partial);

  const bool ka = p.a_major() == Major::kK, kb = p.b_major() == Major::kK;
  cudaError_t e = ka ? (kb ? launch_majors<Config, T, Major::kK, Major::kK>(params, stream)
                           : launch_majors<Config, T, Major::kK, Major::kMN>(params, stream))
                     : (kb ? launch_majors<Config, T, Major::kMN, Major::kK>(params, stream)
                           : launch_majors<Config, T, Major::kMN, Major::kMN>(params, stream));
  if (e != cudaSuccess || partial == nullptr) return e;
  const int64_t threads = p.batches() * p.m * ((p.n + 7) / 8);
  const auto blocks = static_cast<unsigned>((threads + 255) / 256);
  return enqueue(reduce_splits<T>, blocks, 256, 0, stream, params.epilogue, splits, p.batches());
}

}  // namespace hgemm::sm80_mma
