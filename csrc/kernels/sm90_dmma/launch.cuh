// The host side of sm90_dmma: turns a Problem into a launch, or two if K is split.
#pragma once

#include <cuda_runtime.h>

#include <atomic>

#include "core/launch.cuh"
#include "kernels/sm90_dmma/config.h"

#ifndef HGEMM_NO_SM90A
#include "kernels/sm90_dmma/kernel.cuh"
#endif

namespace hgemm::sm90_dmma {

#ifdef HGEMM_NO_SM90A

template <class Config>
Status launch(const Problem&, const Schedule&, void*, Stream) {
  return cudaErrorNoKernelImageForDevice;
}

#else

constexpr uint32_t kRasterGroup = 16;  // rows of tiles of a panel

/// Enqueues the kernel for these Traits. `tiles`: of all matrices.
template <class Traits>
cudaError_t launch_traits(typename Traits::Params& params, uint32_t tiles, cudaStream_t stream) {
  params.turn_a = Traits::A::turn_bytes(params.lda, params.wide_a);
  params.turn_b = Traits::B::turn_bytes(params.ldb, params.wide_b);
  static std::atomic<uint64_t> smem_allowed{0};
  auto* const k = kernel<Traits>;
  if (const cudaError_t e = allow_smem(k, Traits::kSmemBytes, smem_allowed)) return e;
  const dim3 grid(tiles, params.slices);
  return enqueue_clusters(k, grid, Traits::kThreads, Traits::kSmemBytes, params.in_cluster ? params.slices : 1, true,
                          stream, params);
}

/// Enqueues add_slices().
template <class T>
cudaError_t launch_add_slices(const Params<T>& params, cudaStream_t stream) {
  AddParams add{};
  add.partial = params.partial;
  add.slices = static_cast<int>(params.slices);
  add.pitch = static_cast<uint32_t>(params.pitch);
  add.count = static_cast<uint32_t>(int64_t{params.batches} * params.m * params.pitch);
  add.is_triangle = params.is_triangle;
  add.epilogue = params.epilogue;
  add.alpha = params.alpha;
  add.beta = params.beta;
  // Each way has four slices or more, so that its warp has several loads in flight.
  add.ways = 1;
  while (add.ways < kAddWarps && add.slices >= 8 * add.ways) add.ways *= 2;
  const int64_t sums = kAddThreads / add.ways;  // of a block
  const auto blocks = static_cast<unsigned>((add.count + sums - 1) / sums);
  return enqueue_clusters(add_slices<T>, blocks, kAddThreads, 0, 1, true, stream, add);
}

template <class Config>
Status launch(const Problem& p, const Schedule& s, void* workspace, Stream stream_) {
  const auto stream = static_cast<cudaStream_t>(stream_);
  using T = typename Config::T;
  Params<T> params{};
  params.a = static_cast<const T*>(p.a.data);
  params.b = static_cast<const T*>(p.b.data);
  params.lda = p.lda();
  params.ldb = p.ldb();
  for (int i = 0; i < 2; ++i) {
    params.a_batch[i] = p.a.batch_stride[i];
    params.b_batch[i] = p.b.batch_stride[i];
  }
  params.m = static_cast<int>(p.m);
  params.n = static_cast<int>(p.n);
  params.k = static_cast<int>(p.k);
  params.steps = (params.k + BK - 1) / BK;
  const auto tiles_m = static_cast<uint32_t>((p.m + Config::BM - 1) / Config::BM);
  const auto tiles_n = static_cast<uint32_t>((p.n + Config::BN - 1) / Config::BN);
  params.raster = tile::raster_of(tiles_m, tiles_n, kRasterGroup);
  params.is_triangle = s.is_triangle;
  if (params.is_triangle) params.triangle = tile::triangle_of(p.n, Config::BM, Config::BN, kRasterGroup);
  const uint32_t of_matrix = params.is_triangle ? params.triangle.per_batch.divisor() : tiles_m * tiles_n;
  params.slices = static_cast<uint32_t>(s.slices);
  params.in_cluster = s.in_cluster;
  params.batches = static_cast<uint32_t>(p.batches());
  params.batch_inner = FastDivisor(static_cast<uint32_t>(p.batch[1]));
  params.wide_a = has_chunks_a(p);
  params.wide_b = has_chunks_b(p);
  params.step_a = int64_t{sizeof(T)} * Config::GROUPS * BK * params.lda;
  params.step_b = int64_t{sizeof(T)} * Config::GROUPS * BK * params.ldb;
  params.pitch = s.pitch;
  params.partial = static_cast<double*>(workspace);
  params.epilogue = tile::epilogue_params(p, nullptr);
  params.alpha = p.alpha;
  params.beta = p.beta;

  const uint32_t tiles = of_matrix * params.batches;
  constexpr Major K = Major::kK, MN = Major::kMN;
  cudaError_t e;
  if (p.a_major() == K) {
    e = p.b_major() == K ? launch_traits<Traits<Config, K, K> >(params, tiles, stream)
                         : launch_traits<Traits<Config, K, MN> >(params, tiles, stream);
  } else {
    e = p.b_major() == K ? launch_traits<Traits<Config, MN, K> >(params, tiles, stream)
                         : launch_traits<Traits<Config, MN, MN> >(params, tiles, stream);
  }
  return e != cudaSuccess || s.slices == 1 || s.in_cluster ? e : launch_add_slices(params, stream);
}

#endif

}  // namespace hgemm::sm90_dmma
