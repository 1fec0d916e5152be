// Host side of tiny_batch: from a Problem to a launch.
#pragma once

#include <cuda_runtime.h>

#include "core/convert.cuh"
#include "core/launch.cuh"
#include "kernels/tiny_batch/config.h"
#include "kernels/tiny_batch/kernel.cuh"

namespace hgemm::tiny_batch {

inline Place place_of(const Layout& l, int element_bytes) {
  const int pieces = l.run * element_bytes / l.piece;
  return {l, FastDivisor(static_cast<uint32_t>(pieces < 1 ? 1 : pieces)),
          FastDivisor(static_cast<uint32_t>(l.runs < 1 ? 1 : l.runs))};
}

inline Params params_of(const Problem& p, const Schedule& s) {
  const auto divisor = [](int64_t x) { return FastDivisor(static_cast<uint32_t>(x)); };
  const int bytes = dtype_bytes(p.dtype), tiles = s.tiles_m * s.tiles_n;
  Params params{};
  params.a = p.a.data;
  params.b = p.b.data;
  params.place_a = place_of(s.a, bytes);
  params.place_b = place_of(s.b, bytes);
  params.place_d = place_of(s.d, dtype_bytes(p.out_dtype));
  params.batches = static_cast<uint32_t>(p.batches());
  params.batch_inner = divisor(p.batch[1]);
  params.m = static_cast<int>(p.m);
  params.n = static_cast<int>(p.n);
  params.k = static_cast<int>(p.k);
  params.problems = s.problems;
  params.units = s.problems * tiles;
  params.unit_inner = divisor(s.across_matrices ? s.problems : tiles);
  params.tiles_n = divisor(s.tiles_n);
  params.cols = divisor(p.n);
  params.matrix = divisor(p.m * p.n);
  params.a_apart = s.a_apart;
  params.b_apart = s.b_apart;
  params.b_at = s.b_at;
  params.d_at = s.d_at;
  params.across_matrices = s.across_matrices;
  params.a_is_k_major = p.a_major() == Major::kK;
  params.b_is_k_major = p.b_major() == Major::kK;
  params.plain = s.plain;
  params.linear = s.linear;
  params.conjugates_a = p.conjugates_a;
  params.conjugates_b = p.conjugates_b;
  params.alpha = p.alpha;
  params.beta = p.beta;
  params.epilogue = tile::epilogue_params(p, nullptr);
  return params;
}

template <class Config, DType kDType>
Status launch(const Problem& p, const Schedule& s, Stream stream) {
  if constexpr (sizeof(Element<kDType>) == 8 && Config::BLOCKS_OF_8 == 0) {
    return cudaErrorInvalidValue;  // the variant does not list the dtype
  } else {
    return enqueue_clusters(kernel<Traits<Config, Element<kDType>>>, dim3(static_cast<unsigned>(s.blocks)), s.threads,
                            s.smem_bytes, 1, s.dependent, static_cast<cudaStream_t>(stream), params_of(p, s));
  }
}

}  // namespace hgemm::tiny_batch
