// Host side of sm90_wgmma: from a Problem to a launch.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <atomic>

#include "core/chip.h"
#include "core/convert.cuh"
#include "core/launch.cuh"
#include "kernels/sm90_wgmma/config.h"
#include "kernels/sm90_wgmma/edges.h"
#include "kernels/sm90_wgmma/merged_rows.h"
#include "kernels/sm90_wgmma/stream_k.h"

#ifndef HGEMM_NO_SM90A
#include "kernels/sm90_wgmma/kernel.cuh"
#include "tile/operand_map.h"
#include "tile/pad.h"
#endif

namespace hgemm::sm90_wgmma {

#ifdef HGEMM_NO_SM90A

template <class Config, DType kDType>
Status launch(const Problem&, const DeviceFacts&, void*, Stream) {
  return cudaErrorNoKernelImageForDevice;
}

#else

/// Rows of C in a panel of the raster order. About as many columns are in flight at a time, so the blocks that run
/// together compute a square patch of C.
constexpr int kRasterRows = 2048;

/// Rows of a box of B.
template <class Traits>
constexpr int box_rows_of_b() {
  if constexpr (loads_boxes<Traits>) return Traits::kBoxRows;
  return SmemB<Traits>::kBoxRows;
}

/// The tensor map of the weights of a Gated kernel, (groups, rows, k), K-major: eight rows of a group's gate, the same
/// eight rows of its up, and so on. `box_rows` counts both.
template <class Traits>
Status gated_map(const Problem& p, const Matrix& w, int64_t rows, int64_t ld, int box_rows, CUtensorMap* map) {
  constexpr int kRows = Traits::kGateColumns;
  TmaView view{};
  view.data = w.data;
  view.dtype = p.dtype;
  view.cols = p.k;
  view.rows = kRows;
  view.ld = ld;
  view.batch[0] = ((p.batch[1] - 1) * rows + rows / 2) / kRows;
  view.batch[1] = 2;
  view.batch_stride[0] = kRows * ld;
  view.batch_stride[1] = rows / 2 * ld;
  view.box_rows = kRows;
  view.box_batch[0] = box_rows / (2 * kRows);
  view.box_batch[1] = 2;
  return tensor_map(view, map);
}

/// The tensor map of A in a Merged kernel: all rows as those of one matrix if they are flat, or else boxes of rows of
/// several matrices.
inline Status merged_map(const Problem& p, const MergedRows& merged, CUtensorMap* map) {
  TmaView view{};
  view.data = p.a.data;
  view.dtype = p.dtype;
  view.cols = p.k;
  view.rows = merged.is_flat ? merged.rows : merged.fast;
  view.ld = merged.a_pitch;
  view.batch[0] = p.a.batch_stride[0] == 0 ? 1 : p.batch[0];
  view.batch[1] = merged.is_flat ? 1 : merged.slow;
  view.batch_stride[0] = p.a.batch_stride[0];
  view.batch_stride[1] = p.a.batch_stride[1];
  view.box_rows = merged.is_flat ? merged.loaded_rows : merged.box_fast;
  view.box_batch[1] = merged.is_flat ? 1 : merged.box_slow;
  return tensor_map(view, map);
}

/// The other tensor maps of a K-major operand whose map with whole boxes is maps[kWholeBox]. A cluster takes
/// CLUSTER_LINES of its lines.
template <class Operand, int CLUSTER_LINES>
Status trimmed_maps(const Problem& p, const Matrix& operand, int64_t extent, int64_t ld, CUtensorMap (&maps)[3]) {
  maps[kRestBox] = maps[kBoxBeyond] = maps[kWholeBox];
  int32_t moves[2];
  if (const int rest = static_cast<int>(extent % Operand::kBoxRows); rest > 0) {
    if (const Status e = tile::operand_map(p, operand, extent, p.k, ld, rest, &maps[kRestBox], moves)) return e;
  }
  if (Operand::kSharers == 1 || extent % CLUSTER_LINES == 0) return cudaSuccess;
  return tile::operand_map(p, operand, extent, p.k, ld, 1, &maps[kBoxBeyond], moves);
}

template <class Traits>
Status launch_traits(const Problem& p, const DeviceFacts& facts, ParamsOf<Traits>& params, cudaStream_t stream) {
  const bool ka = Traits::kMajorA == Major::kK, kb = Traits::kMajorB == Major::kK;
  if constexpr (Traits::kMerged) {
    params.a_batch[0] = p.a.batch_stride[0] == 0 ? 0 : ~0;
    if (const Status e = merged_map(p, params.merged, &params.a[0])) return e;
  } else {
    if (const Status e = tile::operand_map(p, p.a, ka ? p.m : p.k, ka ? p.k : p.m, p.lda(), SmemA<Traits>::kBoxRows,
                                           &params.a[0], params.a_batch)) {
      return e;
    }
  }
  const int64_t cols_b = p.b_tile == 0 ? p.n : p.ldb();
  constexpr int kBoxRowsB = box_rows_of_b<Traits>();
  if (const Status e = tile::operand_map(p, p.b, kb ? p.n : p.k, kb ? p.k : cols_b, p.ldb(), kBoxRowsB, &params.b[0],
                                         params.b_batch)) {
    return e;
  }
  if constexpr (trims_a<Traits>) {
    if (const Status e = trimmed_maps<SmemA<Traits>, Traits::BM * Traits::CM>(p, p.a, p.m, p.lda(), params.a)) return e;
  }
  if constexpr (trims_b<Traits>) {
    if (const Status e = trimmed_maps<SmemB<Traits>, Traits::BN * Traits::CN>(p, p.b, p.n, p.ldb(), params.b)) return e;
  }
  if constexpr (Traits::kEdged) {
    int32_t moves[2];
    if (const Status e =
            tile::operand_map(p, p.b, p.n, p.k, p.ldb(), SmemEdge<Traits>::kBoxRows, &params.b_edge, moves)) {
      return e;
    }
  }

  if constexpr (loads_boxes<Traits>) {
    int32_t moves[2];
    if (const Status e =
            tile::operand_map(p, p.b, p.n, p.k, p.ldb(), SmemB<Traits>::kBoxRows, &params.b_whole, moves)) {
      return e;
    }
  }

  if constexpr (Traits::kGated) {
    const Status e = Traits::kSwapped ? gated_map<Traits>(p, p.a, p.m, p.lda(), SmemA<Traits>::kBoxRows, &params.a[0])
                                      : gated_map<Traits>(p, p.b, p.n, p.ldb(), SmemB<Traits>::kBoxRows, &params.b[0]);
    if (e != cudaSuccess) return e;
  }

  static std::atomic<uint64_t> smem_allowed{0};
  if (const cudaError_t e = allow_smem(kernel<Traits>, Traits::kSmemBytes, smem_allowed); e != cudaSuccess) return e;
  // A split-K cluster computes one tile only: its barrier for the sums is armed for a single phase.
  uint32_t clusters = Traits::CK > 1
                          ? params.units
                          : std::min(params.units, static_cast<uint32_t>(clusters_at_once(facts, Traits::kCluster)));
  if constexpr (Traits::kStreamK) clusters = params.split.clusters;
  if constexpr (Traits::kEdged) clusters = params.edges.clusters;
  if constexpr (Traits::kGrouped) clusters = params.clusters;
  cudaLaunchAttribute attributes[2]{};
  attributes[0].id = cudaLaunchAttributeClusterDimension;
  attributes[0].val.clusterDim = {Traits::kCluster, 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = clusters * Traits::kCluster;
  config.blockDim = Traits::kThreads;
  config.dynamicSmemBytes = Traits::kSmemBytes;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = 1;
  allow_early_start(&config);
  return cudaLaunchKernelEx(&config, kernel<Traits>, params);
}

/// All parameters of a launch but the tensor maps.
template <class Config>
ParamsOf<Config> params_of(const Problem& p, const DeviceFacts& facts, const Stores& stores, void* workspace) {
  const auto units = [](int64_t extent, int tile) { return static_cast<uint32_t>((extent + tile - 1) / tile); };
  constexpr int kPanel = std::max(1, kRasterRows / (Config::BM * Config::CM));
  const int max_clusters = clusters_at_once(facts, Config::kCluster);
  const uint32_t units_m = units(p.m, Config::BM * Config::CM), units_n = units(p.n, Config::BN * Config::CN);
  ParamsOf<Config> params{};
  params.m = static_cast<int>(p.m);
  params.n = static_cast<int>(p.n);
  params.k_tiles = static_cast<int>((p.k + Config::BK - 1) / Config::BK);
  params.units = units_m * units_n * static_cast<uint32_t>(p.batches());
  params.raster = tile::raster_of(units_m, units_n, kPanel);
  params.batch_inner = FastDivisor(static_cast<uint32_t>(p.batch[1]));
  params.epilogue = tile::epilogue_params(p, nullptr);
  params.store_tma = stores.by_tma;
  params.finish = stores.finish;
  params.defers =
      Config::kDefers && stores.by_tma && stores.finish != Finish::kAny && params.k_tiles >= Config::kHalves;
  params.bias_pairs = has_bias_pairs(p);
  params.pitch_b = p.b_tile == 0 ? Config::BN : pitch_of(Config::BN);
  params.c_pairs = params.epilogue.wide_c && p.n % 2 == 0;
  if constexpr (Config::kStreamK) {
    params.split = Config::kCutsSlices ? split_in_slices(params.units, params.k_tiles, max_clusters)
                                       : split_of(params.units, params.k_tiles, max_clusters);
    params.partials = static_cast<unsigned char*>(workspace);
    params.flags = reinterpret_cast<uint64_t*>(params.partials + size_t{params.split.clusters} * Config::kCluster *
                                                                     Config::kPartialBytes);
    params.tag = next_tag();
  }
  if constexpr (Config::kEdged) {
    params.edges = edges_of(units_m, p.n, max_clusters, Config::BN, Config::kEdge);
    params.raster = tile::raster_of(units_m, params.edges.columns, kPanel);
    params.edge_rows = FastDivisor(params.edges.rows);
  }
  if constexpr (Config::kCarries && !Config::kStreamK) params.in_slices = sums_in_slices(p);
  if constexpr (Config::kSymmetric) {
    params.triangle = tile::triangle_of(p.n, Config::BM * Config::CM, Config::BN * Config::CN, kPanel);
    params.units = params.triangle.per_batch.divisor() * static_cast<uint32_t>(p.batches());
  }
  if constexpr (Config::kMerged) {
    params.merged = merged_rows_of(p, Config::BM);
    params.m = params.merged.rows;
    const uint32_t rows = units(params.merged.tiles, Config::CM);
    params.units = rows * units_n * static_cast<uint32_t>(p.batch[0]);
    params.raster = tile::raster_of(rows, units_n, kPanel);
    params.batch_inner = FastDivisor(1);
  }
  return params;
}

/// Launches D = A B where B is A's transpose (Symmetric).
template <class Config, class T>
Status launch_symmetric(const Problem& p, const DeviceFacts& facts, cudaStream_t stream) {
  ParamsOf<Config> params = params_of<Config>(p, facts, stores_of(p), nullptr);
  int32_t moves[2];
  if (const Status e = tile::operand_map(p, p.d, p.m, p.n, p.d.row_stride, 16, &params.d, moves)) return e;
  if (const Status e = tile::operand_map(p, p.d, p.m, p.n, p.d.row_stride, 64, &params.mirror, moves)) return e;
  return p.a_major() == Major::kK ? launch_traits<Traits<Config, T, Major::kK, Major::kK> >(p, facts, params, stream)
                                  : launch_traits<Traits<Config, T, Major::kMN, Major::kMN> >(p, facts, params, stream);
}

/// Launches D = A B of a batch whose matrices share B (Merged).
template <class Config, class T>
Status launch_merged(const Problem& p, const DeviceFacts& facts, cudaStream_t stream) {
  MergedParams params = params_of<Config>(p, facts, stores_of(p), nullptr);
  return p.b_major() == Major::kK ? launch_traits<Traits<Config, T, Major::kK, Major::kK> >(p, facts, params, stream)
                                  : launch_traits<Traits<Config, T, Major::kK, Major::kMN> >(p, facts, params, stream);
}

/// Launches D = A B.
template <class Config, class T>
Status launch_as_given(const Problem& p, const DeviceFacts& facts, void* workspace, cudaStream_t stream) {
  ParamsOf<Config> params = params_of<Config>(p, facts, stores_of(p), workspace);
  if (params.store_tma) {
    int32_t moves[2];
    if (const Status e = tile::operand_map(p, p.d, p.m, p.n, p.d.row_stride, 16, &params.d, moves)) return e;
  }
  const bool ka = p.a_major() == Major::kK, kb = p.b_major() == Major::kK;
  if constexpr (Config::kTakesMnMajorB) {
    if (!kb) {
      return ka ? launch_traits<Traits<Config, T, Major::kK, Major::kMN> >(p, facts, params, stream)
                : launch_traits<Traits<Config, T, Major::kMN, Major::kMN> >(p, facts, params, stream);
    }
  }
  return ka ? launch_traits<Traits<Config, T, Major::kK, Major::kK> >(p, facts, params, stream)
            : launch_traits<Traits<Config, T, Major::kMN, Major::kK> >(p, facts, params, stream);
}

/// Launches D^T = B^T A^T (SwapAB).
template <class Config, class T>
Status launch_swapped(const Problem& p, const DeviceFacts& facts, void* workspace, cudaStream_t stream) {
  const Problem q = swapped_problem(p);
  ParamsOf<Config> params = params_of<Config>(q, facts, stores_of(p), workspace);  // p describes D
  int32_t moves[2];
  if (const Status e = tile::operand_map(p, p.d, p.m, p.n, p.d.row_stride, 64, &params.d, moves)) return e;
  return p.b_major() == Major::kK ? launch_traits<Traits<Config, T, Major::kK, Major::kK> >(q, facts, params, stream)
                                  : launch_traits<Traits<Config, T, Major::kMN, Major::kK> >(q, facts, params, stream);
}

template <class Config, DType kDType>
Status launch(const Problem& p, const DeviceFacts& facts, void* workspace, Stream stream_) {
  using T = ElementOf<kDType>;
  const auto stream = static_cast<cudaStream_t>(stream_);
  if constexpr (Config::kSymmetric) {
    return launch_symmetric<Config, T>(p, facts, stream);
  } else if constexpr (Config::kMerged) {
    return launch_merged<Config, T>(p, facts, stream);
  } else if constexpr (Config::kSwapped) {
    return launch_swapped<Config, T>(p, facts, workspace, stream);
  } else {
    return launch_as_given<Config, T>(p, facts, workspace, stream);
  }
}

#endif

}  // namespace hgemm::sm90_wgmma
