// The host side of batched_mma: turns a Problem into a launch.
#pragma once

#include <cuda_runtime.h>

#include <atomic>

#include "core/convert.cuh"
#include "core/launch.cuh"
#include "kernels/batched_mma/config.h"
#include "kernels/batched_mma/kernel.cuh"

namespace hgemm::batched_mma {

/// Enqueues the kernel for these Traits.
template <class Traits>
cudaError_t launch_traits(const Schedule& s, const Params& params, cudaStream_t stream) {
  static std::atomic<uint64_t> smem_allowed{0};
  auto* const k = kernel<Traits>;
  if (const cudaError_t e = allow_smem(k, Traits::kSmemBytes, smem_allowed)) return e;
  return enqueue_clusters(k, dim3(s.blocks), Traits::kThreads, Traits::kSmemBytes, 1, s.dependent, stream, params);
}

/// Chooses the kernel for the memory orders of A and B.
template <class Config, class T, bool kNarrow>
cudaError_t launch_majors(const Problem& p, const Schedule& s, const Params& params, cudaStream_t stream) {
  const bool ka = p.a_major() == Major::kK, kb = p.b_major() == Major::kK;
  if (ka && kb) return launch_traits<Traits<Config, T, Major::kK, Major::kK, kNarrow>>(s, params, stream);
  if (ka) return launch_traits<Traits<Config, T, Major::kK, Major::kMN, kNarrow>>(s, params, stream);
  if (kb) return launch_traits<Traits<Config, T, Major::kMN, Major::kK, kNarrow>>(s, params, stream);
  return launch_traits<Traits<Config, T, Major::kMN, Major::kMN, kNarrow>>(s, params, stream);
}

/// Returns the lower 32 bits of the address of an operand's last element. That is the last element of the last matrix,
/// since no stride is negative. A matrix is `rows` rows of `cols` contiguous elements, which are `ld` elements apart.
inline uint32_t last_element(const Matrix& x, int64_t rows, int64_t cols, int64_t ld, const int64_t (&batch)[2]) {
  const int64_t at =
      (batch[0] - 1) * x.batch_stride[0] + (batch[1] - 1) * x.batch_stride[1] + (rows - 1) * ld + cols - 1;
  return static_cast<uint32_t>(reinterpret_cast<uint64_t>(x.data) + 2 * at);
}

template <class Config, DType kDType>
Status launch(const Problem& p, const Schedule& s, Stream stream_) {
  using T = ElementOf<kDType>;
  const auto stream = static_cast<cudaStream_t>(stream_);
  Params params{};
  params.a = p.a.data;
  params.b = p.b.data;
  params.lda = p.lda();
  params.ldb = p.ldb();
  for (int i = 0; i < 2; ++i) {
    params.a_batch[i] = p.a.batch_stride[i];
    params.b_batch[i] = p.b.batch_stride[i];
  }
  params.batches = static_cast<uint32_t>(p.batches());
  params.batch_inner = static_cast<uint32_t>(p.batch[1]);
  params.m = static_cast<int>(p.m);
  params.n = static_cast<int>(p.n);
  params.k = static_cast<int>(p.k);
  const bool ka = p.a_major() == Major::kK, kb = p.b_major() == Major::kK;
  params.a_last = last_element(p.a, ka ? p.m : p.k, ka ? p.k : p.m, params.lda, p.batch);
  params.b_last = last_element(p.b, kb ? p.n : p.k, kb ? p.k : p.n, params.ldb, p.batch);
  params.epilogue = tile::epilogue_params(p, nullptr);
  params.plain = p.alpha == 1.0f && params.epilogue.c == nullptr && p.bias == nullptr && p.act == Activation::kNone &&
                 p.pre_activation == nullptr && p.out_dtype == p.dtype;
  params.wide_d = params.epilogue.wide_d && p.n % 8 == 0;
  if constexpr (!Config::kIsAlwaysNarrow) {
    if (is_wide(p)) return launch_majors<Config, T, false>(p, s, params, stream);
  }
  return launch_majors<Config, T, true>(p, s, params, stream);
}

}  // namespace hgemm::batched_mma
