// Host side of sm90_skinny: from a Problem to a launch.
#pragma once

#include <cuda_runtime.h>

#include <atomic>

#include "core/convert.cuh"
#include "core/launch.cuh"
#include "core/short_side.h"
#include "kernels/sm90_skinny/config.h"

#ifndef HGEMM_NO_SM90A
#include "kernels/sm90_skinny/kernel.cuh"
#include "tile/operand_map.h"
#include "tile/tensor_map.h"
#endif

namespace hgemm::sm90_skinny {

#ifdef HGEMM_NO_SM90A

template <class Config, DType kDType>
Status launch(const Problem&, const Schedule&, Stream) {
  return cudaErrorNoKernelImageForDevice;
}

template <class Config>
Status launch_int8(const Problem&, const Schedule&, Stream) {
  return cudaErrorNoKernelImageForDevice;
}

#else

/// The tensor map of a gated W, (rows, k), K-major: four rows of its first matrix, the same four rows of its second
/// matrix, and so on.
inline Status gated_map(const Problem& p, const ShortSide& sides, int tile_rows, CUtensorMap* map) {
  const int64_t half = sides.rows / 2;
  TmaView view{};
  view.data = sides.w->data;
  view.dtype = p.dtype;
  view.cols = p.k;
  view.rows = kGateRows;
  view.ld = sides.ldw;
  view.batch[0] = half / kGateRows;
  view.batch[1] = 2;
  view.batch_stride[0] = kGateRows * sides.ldw;
  view.batch_stride[1] = half * sides.ldw;
  view.box_rows = kGateRows;
  view.box_batch[0] = tile_rows / (2 * kGateRows);
  view.box_batch[1] = 2;
  return tensor_map(view, map);
}

/// The tensor map of x in its own order.
template <class Traits>
Status x_map(const Problem& p, const ShortSide& sides, Params* params) {
  if (Traits::kMajorX == Major::kK) {
    return tile::operand_map(p, *sides.x, sides.cols, p.k, sides.ldx, Traits::COLS, &params->x, params->x_batch);
  }
  // If the lines of x are 16 bytes and contiguous, eight of them are read as one row of the map: a panel has the same
  // layout as memory.
  constexpr int kShift = 3, kLines = 1 << kShift;
  if (Traits::COLS == 8 && sides.cols == 8 && sides.ldx == 8 && p.k % kLines == 0) {
    params->x_shift = kShift;
    return tile::operand_map(p, *sides.x, p.k / kLines, 8 * kLines, 8 * kLines, 64 / kLines, &params->x,
                             params->x_batch, 8 * kLines, true);
  }
  params->x_shift = 0;
  return tile::operand_map(p, *sides.x, p.k, sides.cols, sides.ldx, 64, &params->x, params->x_batch, Traits::COLS);
}

template <class Traits>
Status launch_traits(const Problem& p, const Schedule& s, const ShortSide& sides, Params& params, cudaStream_t stream) {
  params.stages = Stage<Traits>::count(s.tile_rows);
  constexpr bool k_major = Traits::kMajor == Major::kK;
  constexpr int kDepth = Traits::kTransposes ? 2 : 1;  // k of W that are one k of the problem, a pair
  if (const Status e = Traits::kGated ? gated_map(p, sides, s.tile_rows, &params.w)
                                      : tile::operand_map(p, *sides.w, k_major ? sides.rows : kDepth * p.k,
                                                          k_major ? p.k : sides.rows / kDepth, sides.ldw,
                                                          k_major ? s.tile_rows : kDepth * 64, &params.w,
                                                          params.w_batch, Traits::kNarrow ? kNarrowRows : 64)) {
    return e;
  }
  if (const Status e = x_map<Traits>(p, sides, &params)) return e;
  static std::atomic<uint64_t> smem_allowed{0};
  auto* const k = kernel<Traits>;
  if (const cudaError_t e = allow_smem(k, Traits::kSmemBytes, smem_allowed)) return e;
  const dim3 grid(s.blocks, s.splits, static_cast<unsigned>(p.batches() * s.x_tiles));
  return enqueue_clusters(k, grid, Traits::kThreads, Traits::kSmemBytes, s.splits, true, stream, params);
}

/// Launches a kernel with kNarrowRows rows of an MN-major W in a tile.
template <class Config, class T>
Status launch_narrow(const Problem& p, const Schedule& s, const ShortSide& sides, Params& params, cudaStream_t stream) {
  constexpr Major kMN = Major::kMN;
  return sides.x_major == Major::kK
             ? launch_traits<Traits<Config, T, kMN, Major::kK, false, true> >(p, s, sides, params, stream)
             : launch_traits<Traits<Config, T, kMN, kMN, false, true> >(p, s, sides, params, stream);
}

template <class Config, class T>
Status launch_majors(const Problem& p, const Schedule& s, const ShortSide& sides, Params& params, cudaStream_t stream) {
  if (sides.x_major == Major::kK) {
    return sides.w_major == Major::kK ? launch_traits<Traits<Config, T, Major::kK> >(p, s, sides, params, stream)
                                      : launch_traits<Traits<Config, T, Major::kMN> >(p, s, sides, params, stream);
  }
  if constexpr (Config::kTakesMnMajorX) {
    return sides.w_major == Major::kK
               ? launch_traits<Traits<Config, T, Major::kK, Major::kMN> >(p, s, sides, params, stream)
               : launch_traits<Traits<Config, T, Major::kMN, Major::kMN> >(p, s, sides, params, stream);
  }
  return cudaErrorInvalidValue;
}

/// All parameters of a launch but the tensor maps, the stages and the gate.
template <class Config>
Params params_of(const Problem& p, const Schedule& s, const ShortSide& sides) {
  Params params{};
  params.batch_inner = static_cast<uint32_t>(p.batch[1]);
  params.rows = static_cast<int>(sides.rows);
  params.cols = static_cast<int>(sides.cols);
  params.x_tiles = s.x_tiles;
  params.tile_rows = s.tile_rows;
  params.k_steps = static_cast<int>((p.k + Config::BK - 1) / Config::BK);
  params.splits = s.splits;
  params.finishes = finished_warps(Config::kWarps, s.splits);
  params.prefetch = s.prefetch;
  params.release = s.release;
  params.swapped = sides.swapped;
  params.epilogue = tile::epilogue_params(p, nullptr);
  return params;
}

template <class Config, DType kDType>
Status launch(const Problem& p, const Schedule& s, Stream stream_) {
  using T = ElementOf<kDType>;
  const auto stream = static_cast<cudaStream_t>(stream_);
  const ShortSide sides = short_side_of(p);
  Params params = params_of<Config>(p, s, sides);
  if constexpr (!Config::kTilesX) {
    if (p.gated) {
      params.gate = p.act;
      params.epilogue.act = Activation::kNone;
      params.epilogue.n = p.n / 2;
      return launch_traits<Traits<Config, T, Major::kK, Major::kK, true> >(p, s, sides, params, stream);
    }
  }
  if constexpr (Config::ROWS == 64 && Config::COLS > 8 && !Config::kTilesX) {
    using Filling = std::conditional_t<Config::kHasDeep, Deep<Config>, Config>;
    if (s.deep && sides.w_major == Major::kMN && s.tile_rows == kNarrowRows) {
      return launch_narrow<Filling, T>(p, s, sides, params, stream);
    }
  }
  if constexpr (Config::kHasDeep) {
    if (s.deep) return launch_majors<Deep<Config>, T>(p, s, sides, params, stream);
  }
  return launch_majors<Config, T>(p, s, sides, params, stream);
}

template <class Config>
Status launch_int8(const Problem& p, const Schedule& s, Stream stream) {
  const ShortSide sides = short_side_of(p);
  Params params = params_of<Config>(p, s, sides);
  constexpr Major kMajor = Config::PARTS == 1 ? Major::kK : Major::kMN;
  return launch_traits<Traits<Config, ptx::Int8Pair, kMajor> >(p, s, sides, params, static_cast<cudaStream_t>(stream));
}

#endif

}  // namespace hgemm::sm90_skinny
