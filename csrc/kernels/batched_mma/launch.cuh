// The host side of batched_mma: turns a Problem into a launch.
#pragma once

#include <cuda_runtime.h>

#include <atomic>
#include <type_traits>

#include "core/convert.cuh"
#include "core/launch.cuh"
#include "kernels/batched_mma/config.h"
#include "kernels/batched_mma/in_place_kernel.cuh"
#include "kernels/batched_mma/kernel.cuh"
#include "kernels/batched_mma/whole_kernel.cuh"

namespace hgemm::batched_mma {

/// Enqueues the kernel for these Traits.
template <class Traits>
cudaError_t launch_traits(const Schedule& s, const Params& params, cudaStream_t stream) {
  static std::atomic<uint64_t> smem_allowed{0};
  auto* const k = kernel<Traits>;
  if (const cudaError_t e = allow_smem(k, Traits::kSmemBytes, smem_allowed)) return e;
  return enqueue_clusters(k, dim3(s.blocks), Traits::kThreads, Traits::kSmemBytes, 1, s.dependent, stream, params);
}

/// Calls launch() with the memory orders of A and B as constants.
template <class Launch>
cudaError_t by_majors(const Problem& p, const Launch& launch) {
  constexpr std::integral_constant<Major, Major::kK> kK;
  constexpr std::integral_constant<Major, Major::kMN> kMN;
  const bool ka = p.a_major() == Major::kK, kb = p.b_major() == Major::kK;
  if (ka) return kb ? launch(kK, kK) : launch(kK, kMN);
  return kb ? launch(kMN, kK) : launch(kMN, kMN);
}

/// Returns the address of an operand's last element. That is the last element of the last matrix, since no stride is
/// negative. A matrix is `rows` rows of `cols` contiguous elements, which are `ld` elements apart.
inline uint64_t last_element(const Matrix& x, int64_t rows, int64_t cols, int64_t ld, const int64_t (&batch)[2]) {
  const int64_t at =
      (batch[0] - 1) * x.batch_stride[0] + (batch[1] - 1) * x.batch_stride[1] + (rows - 1) * ld + cols - 1;
  return reinterpret_cast<uint64_t>(x.data) + 2 * at;
}

/// Enqueues the kernel that copies whole matrices, for these memory orders of A and B.
template <class Config, class T, Major kA, Major kB>
cudaError_t launch_whole(const Problem& p, const Schedule& s, cudaStream_t stream) {
  using Of = WholeTraits<Config, T, kA, kB>;
  constexpr bool kKMajorA = kA == Major::kK, kKMajorB = kB == Major::kK;
  static std::atomic<uint64_t> smem_allowed{0};
  auto* const k = whole_kernel<Of>;
  if (const cudaError_t e = allow_smem(k, Of::kSmemBytes, smem_allowed)) return e;
  WholeParams params{};
  params.a = static_cast<const uint16_t*>(p.a.data);
  params.b = static_cast<const uint16_t*>(p.b.data);
  params.d = static_cast<uint16_t*>(p.d.data);
  for (int i = 0; i < 2; ++i) {
    params.a_batch[i] = p.a.batch_stride[i];
    params.b_batch[i] = p.b.batch_stride[i];
    params.d_batch[i] = p.d.batch_stride[i];
  }
  params.m = static_cast<int>(p.m);
  params.n = static_cast<int>(p.n);
  params.k = static_cast<int>(p.k);
  params.alpha = static_cast<float>(p.alpha);
  params.batches = static_cast<uint32_t>(p.batches());
  params.batch_inner = static_cast<uint32_t>(p.batch[1]);
  params.of_a = {reinterpret_cast<uint64_t>(p.a.data), last_element(p.a, 1, p.m * p.k, 0, p.batch) + 2};
  params.of_b = {reinterpret_cast<uint64_t>(p.b.data), last_element(p.b, 1, p.n * p.k, 0, p.batch) + 2};
  const int chunks_of_k = (params.k + 15) / 16 * 2;
  params.chunks_a = kKMajorA ? chunks_of_k : (params.m + 7) / 8;
  params.chunks_b = kKMajorB ? chunks_of_k : (params.n + 7) / 8;
  params.inverse_a = ((1u << 16) + params.chunks_a - 1) / params.chunks_a;
  params.inverse_b = ((1u << 16) + params.chunks_b - 1) / params.chunks_b;
  return enqueue_clusters(k, dim3(s.blocks), Of::kThreads, Of::kSmemBytes, 1, s.dependent, stream, params);
}

/// Enqueues the kernel whose tiles take the place of the matrices, for these memory orders of A and B.
template <class Config, class T, Major kA, Major kB>
cudaError_t launch_in_place(const Problem& p, const Schedule& s, cudaStream_t stream) {
  using Of = InPlaceTraits<Config, T, kA, kB>;
  static std::atomic<uint64_t> smem_allowed{0};
  auto* const k = in_place_kernel<Of>;
  if (const cudaError_t e = allow_smem(k, s.most_smem, smem_allowed)) return e;
  const InPlaceTiles tiles = in_place_tiles(p);
  const auto operand = [&p](const Matrix& x, int64_t extent, const InPlaceTile& tile) {
    InPlaceOperand o{};
    o.first = static_cast<const uint16_t*>(x.data);
    for (int i = 0; i < 2; ++i) o.batch[i] = x.batch_stride[i];
    o.of = {reinterpret_cast<uint64_t>(x.data), last_element(x, 1, extent * p.k, 0, p.batch) + 2};
    o.tile = tile;
    o.inverse = ((1u << 16) + tile.chunks - 1) / tile.chunks;
    o.row_step = Of::kThreads / tile.chunks;
    o.chunk_step = Of::kThreads % tile.chunks;
    return o;
  };
  InPlaceParams params{};
  params.x = Of::kSwaps ? operand(p.b, p.n, tiles.x) : operand(p.a, p.m, tiles.x);
  params.y = Of::kSwaps ? operand(p.a, p.m, tiles.y) : operand(p.b, p.n, tiles.y);
  params.d = static_cast<uint16_t*>(p.d.data);
  for (int i = 0; i < 2; ++i) params.d_batch[i] = p.d.batch_stride[i];
  params.m = static_cast<int>(p.m);
  params.n = static_cast<int>(p.n);
  params.k = static_cast<int>(p.k);
  params.alpha = static_cast<float>(p.alpha);
  params.batches = static_cast<uint32_t>(p.batches());
  params.batch_inner = static_cast<uint32_t>(p.batch[1]);
  params.rotates = tiles.rotates;
  params.tiles_x = (tiles.x.outer + 16 * Of::MI - 1) / (16 * Of::MI);
  params.tiles = params.tiles_x * ((tiles.y.outer + 31) / 32);
  params.inverse_x = ((1u << 16) + params.tiles_x - 1) / params.tiles_x;
  return enqueue_clusters(k, dim3(s.blocks), Of::kThreads, tiles.bytes, 1, s.dependent, stream, params);
}

/// Enqueues a kernel of any Config but InPlaceConfig.
template <class Config, class T>
Status launch_tiles(const Problem& p, const Schedule& s, cudaStream_t stream) {
  if constexpr (Config::kTakesWhole) {
    if (s.whole) {
      return by_majors(p, [&](auto a, auto b) { return launch_whole<Whole64, T, a.value, b.value>(p, s, stream); });
    }
  }
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
  params.a_last = static_cast<uint32_t>(last_element(p.a, ka ? p.m : p.k, ka ? p.k : p.m, params.lda, p.batch));
  params.b_last = static_cast<uint32_t>(last_element(p.b, kb ? p.n : p.k, kb ? p.k : p.n, params.ldb, p.batch));
  params.epilogue = tile::epilogue_params(p, nullptr);
  params.plain = is_scaled_product(p) && p.alpha == 1.0;
  params.wide_d = params.epilogue.wide_d && p.n % 8 == 0;
  return by_majors(p, [&](auto a, auto b) {
    if constexpr (!Config::kIsAlwaysNarrow) {
      if (is_wide(p)) return launch_traits<Traits<Config, T, a.value, b.value, false>>(s, params, stream);
    }
    return launch_traits<Traits<Config, T, a.value, b.value, true>>(s, params, stream);
  });
}

template <class Config, DType kDType>
Status launch(const Problem& p, const Schedule& s, Stream stream_) {
  using T = ElementOf<kDType>;
  const auto stream = static_cast<cudaStream_t>(stream_);
  if constexpr (Config::kIsInPlace) {
    return by_majors(p, [&](auto a, auto b) { return launch_in_place<Config, T, a.value, b.value>(p, s, stream); });
  } else {
    return launch_tiles<Config, T>(p, s, stream);
  }
}

}  // namespace hgemm::batched_mma
