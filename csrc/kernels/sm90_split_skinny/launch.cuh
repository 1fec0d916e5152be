// Host side of sm90_split_skinny: from a Problem to its two launches.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <atomic>

#include "core/launch.cuh"
#include "core/short_side.h"
#include "kernels/sm90_split_skinny/config.h"

#ifndef HGEMM_NO_SM90A
#include "kernels/sm90_split_skinny/kernel.cuh"
#include "tile/operand_map.h"
#include "tile/plane_map.h"
#include "tile/split_planes.h"
#endif

namespace hgemm::sm90_split_skinny {

#ifdef HGEMM_NO_SM90A

template <class Config>
Status launch(const Problem&, const DeviceFacts&, const Schedule&, void*, Stream) {
  return cudaErrorNoKernelImageForDevice;
}

#else

template <class Traits>
Status launch_traits(const Problem& p, const DeviceFacts& facts, const ShortSide& sides, Params& params,
                     cudaStream_t stream) {
  constexpr bool k_major = Traits::kKMajor;
  if (const Status e = tile::operand_map(p, *sides.w, k_major ? sides.rows : p.k, k_major ? p.k : sides.rows, sides.ldw,
                                         k_major ? Traits::ROWS : Traits::BK, &params.w, params.w_moves, 32)) {
    return e;
  }
  static std::atomic<uint64_t> smem_allowed{0};
  if (const cudaError_t e = allow_smem(kernel<Traits>, Traits::kSmemBytes, smem_allowed)) return e;
  const dim3 grid(std::min(params.units, static_cast<uint32_t>(facts.sm_count)));
  return enqueue_clusters(kernel<Traits>, grid, Traits::kThreads, Traits::kSmemBytes, 1, true, stream, params);
}

template <class Config>
Status launch(const Problem& p, const DeviceFacts& facts, const Schedule& s, void* workspace, Stream stream_) {
  const auto stream = static_cast<cudaStream_t>(stream_);
  const ShortSide sides = short_side_of(p);
  split::Memory memory{};
  memory.a = memory.b = static_cast<unsigned char*>(workspace);
  memory.changed.a = !sides.swapped;
  memory.changed.b = sides.swapped;
  const split::Side a = split::side_a(p, memory), b = split::side_b(p, memory);
  const split::Side &w = sides.swapped ? a : b, &x = sides.swapped ? b : a;
  Params params{};
  params.sums = reinterpret_cast<float*>(memory.a + x.planes.bytes);
  params.counters =
      reinterpret_cast<unsigned*>(memory.a + x.planes.bytes + s.sums_bytes(p.batches(), {Config::ROWS, Config::COLS}));
  const int counters = static_cast<int>(s.counters(p.batches()));
  if (const Status e = split::launch_pass(p, memory, params.counters, counters, stream)) return e;

  constexpr int kPlanes = Config::kPlanes;  // a box has all of them
  if (const Status e = split::map_planes(x, DType::kBF16, kPlanes, Config::COLS, kPlanes, &params.planes)) return e;
  params.long_side = split::operand_of(w);
  params.short_side = split::operand_of(x);
  params.epilogue = tile::epilogue_params(p, nullptr);
  params.swapped = sides.swapped;
  params.is_plain = params.epilogue.c == nullptr && p.act == Activation::kNone && p.pre_activation == nullptr;
  params.k = static_cast<int>(p.k);
  params.steps = static_cast<int>((p.k + Config::BK - 1) / Config::BK);
  params.slice_steps = s.steps;
  params.col_tiles = FastDivisor(static_cast<uint32_t>(s.cols));
  params.row_tiles = FastDivisor(static_cast<uint32_t>(s.rows));
  params.slices = FastDivisor(static_cast<uint32_t>(s.slices));
  params.batch_inner = FastDivisor(static_cast<uint32_t>(p.batch[1]));
  params.units = static_cast<uint32_t>(int64_t{s.cols} * s.rows * s.slices * p.batches());
  return sides.w_major == Major::kK ? launch_traits<Traits<Config, Major::kK> >(p, facts, sides, params, stream)
                                    : launch_traits<Traits<Config, Major::kMN> >(p, facts, sides, params, stream);
}

#endif

}  // namespace hgemm::sm90_split_skinny
