// Host side of the grouped kernels: from a GroupedProduct to a launch.
#pragma once

#include <algorithm>

#include "core/grouped.h"
#include "kernels/sm90_wgmma/launch.cuh"

namespace hgemm::sm90_wgmma {

#ifndef HGEMM_NO_SM90A

/// All parameters of a launch but the tensor maps.
template <class Config>
GroupedParams grouped_params_of(const GroupedProduct& grouped, const DeviceFacts& facts) {
  const Problem& p = grouped.product;
  GroupedParams params{};
  params.m = static_cast<int>(Config::kSwapped ? p.n : p.m);
  params.n = static_cast<int>(Config::kSwapped ? p.m : p.n);
  params.k_tiles = static_cast<int>((p.k + Config::BK - 1) / Config::BK);
  params.batch_inner = FastDivisor(1);
  params.pitch_b = Config::BN;
  params.store_tma = true;
  const bool finishes = !p.gated && (p.bias != nullptr || p.act != Activation::kNone);
  params.finish = finishes ? Finish::kAny : Finish::kScale;
  params.defers = Config::kDefers && !finishes && params.k_tiles >= Config::kHalves;
  params.epilogue = tile::epilogue_params(p, nullptr);
  params.ends = grouped.ends;
  params.groups = static_cast<int>(p.batch[1]);
  params.rows = static_cast<int>(p.m);
  params.launch = grouped.launch;
  params.few_rows = grouped.few_rows;
  std::copy_n(grouped.tiles, 2, params.tiles);
  params.columns = static_cast<uint32_t>((p.n + Config::kTileColumns - 1) / Config::kTileColumns);
  params.panel = std::max(1, kRasterRows / Config::kGroupRows);
  // No ends that do not decrease have more work tiles than this.
  const int64_t units = (p.m / Config::kGroupRows + std::min(p.m, p.batch[1])) * params.columns;
  const int64_t at_once = clusters_at_once(facts, Config::kCluster);
  // Where a cluster would have more work tiles than its table has entries, more clusters run, in whole waves: some that
  // come after the others would keep the device from being full for as long as all the others took.
  const int64_t waves = (units + at_once * Config::kMaxTurns - 1) / (at_once * Config::kMaxTurns);
  params.clusters = static_cast<uint32_t>(std::min(units, at_once * waves));
  return params;
}

/// The k of a group on average from which on the work tiles of GroupedK kernels are sorted. With fewer k it takes
/// longer to store a tile than to compute it, and the order of the groups in memory is the faster one (NOTES.md).
constexpr int64_t kSortedK = 384;

/// Launches D[g] = A[:, k of g] @ B[k of g].
template <class Config, class T>
Status launch_groups_of_k(const GroupedProduct& grouped, const DeviceFacts& facts, cudaStream_t stream) {
  const Problem& p = grouped.product;
  GroupedKParams params = params_of<Config>(p, facts, {.by_tma = true, .finish = Finish::kScale}, nullptr);
  params.ends = grouped.ends;
  params.groups = static_cast<int>(p.batch[1]);
  params.k = static_cast<int>(p.k);
  params.launch = grouped.launch;
  params.sorts = p.k >= kSortedK * std::min(p.k, p.batch[1]);
  params.matrix_bytes = p.d.batch_stride[1] * dtype_bytes(p.out_dtype);
  const int64_t pieces = (params.matrix_bytes + Config::kFillBytes - 1) / Config::kFillBytes;
  params.filled_pieces = FastDivisor(static_cast<uint32_t>(pieces));
  params.last_piece_bytes = static_cast<int>(params.matrix_bytes - (pieces - 1) * Config::kFillBytes);
  params.fills = p.d.row_stride == p.n && p.d.batch_stride[1] == p.m * p.n && alignment_d(p) == 16;
  int32_t moves[2];
  if (const Status e = tile::operand_map(p, p.d, p.m, p.n, p.d.row_stride, 16, &params.d, moves)) return e;
  return launch_traits<Traits<Config, T, Major::kMN, Major::kMN> >(p, facts, params, stream);
}

/// Launches D[rows of g] = act(gate) * up, where gate and up are the halves of the columns of A[rows of g] @ B[g].
template <class Config, class T>
Status launch_gated(const GroupedProduct& grouped, const DeviceFacts& facts, cudaStream_t stream) {
  const Problem& p = grouped.product;
  GroupedParams params = grouped_params_of<Config>(grouped, facts);
  params.gate_units = static_cast<int>(p.n / Config::kGateColumns);
  (Config::kSwapped ? params.m : params.n) = static_cast<int>(p.n / 2);
  int32_t moves[2];
  if (const Status e = tile::operand_map(p, p.d, p.m, p.n / 2, p.d.row_stride, 16, &params.d, moves)) return e;
  return launch_traits<Traits<Config, T, Major::kK, Major::kK> >(Config::kSwapped ? swapped_problem(p) : p, facts,
                                                                 params, stream);
}

/// Launches D[rows of g] = act(A[rows of g] @ B[g] + bias[g]).
template <class Config, class T>
Status launch_groups_of_rows(const GroupedProduct& grouped, const DeviceFacts& facts, cudaStream_t stream) {
  const Problem& p = grouped.product;
  if constexpr (Config::kGates) {
    if (p.gated) return launch_gated<Gated<Config>, T>(grouped, facts, stream);
  }
  GroupedParams params = grouped_params_of<Config>(grouped, facts);
  int32_t moves[2];
  constexpr int kStoredRows = Config::kSwapped ? 64 : 16;
  if (const Status e = tile::operand_map(p, p.d, p.m, p.n, p.d.row_stride, kStoredRows, &params.d, moves)) return e;
  if constexpr (Config::kSwapped) {
    const Problem q = swapped_problem(p);
    return p.b_major() == Major::kK
               ? launch_traits<Traits<Config, T, Major::kK, Major::kK> >(q, facts, params, stream)
               : launch_traits<Traits<Config, T, Major::kMN, Major::kK> >(q, facts, params, stream);
  } else {
    return p.b_major() == Major::kK
               ? launch_traits<Traits<Config, T, Major::kK, Major::kK> >(p, facts, params, stream)
               : launch_traits<Traits<Config, T, Major::kK, Major::kMN> >(p, facts, params, stream);
  }
}

/// Enqueues a grouped product. `Config` is a Grouped or a GroupedK one.
template <class Config, DType kDType>
Status launch_grouped(const GroupedProduct& grouped, const DeviceFacts& facts, cudaStream_t stream) {
  using T = ElementOf<kDType>;
  if constexpr (Config::kGroupsK) {
    return launch_groups_of_k<Config, T>(grouped, facts, stream);
  } else {
    return launch_groups_of_rows<Config, T>(grouped, facts, stream);
  }
}

#endif

}  // namespace hgemm::sm90_wgmma
