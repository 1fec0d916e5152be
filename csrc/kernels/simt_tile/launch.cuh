// The host side of simt_tile: turns a Problem into a launch.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <atomic>

#include "core/launch.cuh"
#include "kernels/simt_tile/config.h"
#include "kernels/simt_tile/kernel.cuh"

namespace hgemm::simt_tile {

/// Rows of tiles in a panel of the raster: tiles that run at the same time share operands in L2.
constexpr int kPanel = 8;

/// Enqueues the kernel, and the sum of its slices.
template <class Config>
cudaError_t enqueue_both(const Schedule& s, int64_t units, Params params, cudaStream_t stream) {
  OperandA<Config>::set_strides(&params.a);
  OperandB<Config>::set_strides(&params.b);
  static std::atomic<uint64_t> smem_allowed{0};
  auto* const k = kernel<Config>;
  if (const cudaError_t e = allow_smem(k, Config::kSmemBytes, smem_allowed)) return e;
  const bool is_persistent = Config::WK == 1 && (params.direct || s.slices > 1);
  const dim3 grid(is_persistent ? std::min<uint32_t>(params.pieces, s.resident) : params.pieces);
  const cudaError_t e = enqueue_clusters(k, grid, Config::kThreads, Config::kSmemBytes, 1, s.dependent, stream, params);
  if (e != cudaSuccess || s.slices == 1) return e;
  const dim3 sum_grid(static_cast<unsigned>(units), (Config::BM * Config::BN / 4) >> (8 - params.log2_sharers));
  static_assert(kSumThreads == 1 << 8);
  return enqueue_clusters(sum_slices<Config>, sum_grid, kSumThreads, 0, 1, s.dependent, stream, params);
}

template <class Config>
Status launch(const Problem& p, const Schedule& s, void* workspace, Stream stream_) {
  const auto stream = static_cast<cudaStream_t>(stream_);
  Params params{};
  const auto matrices = [](const Matrix& x, int64_t ld, Major major, int alignment) {
    Matrices to{};
    to.data = static_cast<const float*>(x.data);
    to.ld = ld;
    for (int i = 0; i < 2; ++i) to.batch[i] = x.batch_stride[i];
    to.is_k_major = major == Major::kK;
    to.is_wide = alignment == 16;
    return to;
  };
  params.a = matrices(p.a, p.lda(), p.a_major(), alignment_a(p));
  params.b = matrices(p.b, p.ldb(), p.b_major(), alignment_b(p));
  const int64_t units = int64_t{s.tiles_m} * s.tiles_n * p.batches();
  params.batch_inner = FastDivisor(static_cast<uint32_t>(p.batch[1]));
  params.raster = tile::raster_of(s.tiles_m, s.tiles_n, kPanel);
  params.m = static_cast<int>(p.m);
  params.n = static_cast<int>(p.n);
  params.k = static_cast<int>(p.k);
  params.slice_k = s.slice_k;
  params.slices = FastDivisor(s.slices);
  params.pieces = static_cast<uint32_t>(units * s.slices);
  while (params.log2_sharers < 5 && 4 << params.log2_sharers < s.slices) ++params.log2_sharers;
  params.partial = static_cast<float*>(workspace);
  params.epilogue = tile::epilogue_params(p, nullptr);
  params.direct = params.epilogue.wide_d && params.epilogue.c == nullptr && p.bias == nullptr &&
                  p.act == Activation::kNone && p.pre_activation == nullptr;
  return enqueue_both<Config>(s, units, params, stream);
}

}  // namespace hgemm::simt_tile
