// The tile scheduler: which work tiles a cluster computes, in which order, and which k-tiles of each.
//
// A work tile is the output tiles of one cluster (a unit in identifiers). An iteration of a cluster's persistent loop
// computes one work tile or, with stream-K, a segment of one (a turn in identifiers is the iteration's index).
//
// A stream-K kernel first distributes the k-tiles of the work tiles that do not fill a wave evenly over all clusters. A
// cluster that computes a part of a tile without its last k-tile stores its accumulators to memory as partial sums. The
// cluster that computes the last k-tile adds them, first those of the cluster right before it, then those of smaller
// indices. So the order of summation does not depend on which cluster finishes first. A kernel that cuts tiles between
// slices of K (kCutsSlices) adds them where the result has the bits of sums in the order of K (partials_at() in
// stream_k.h).
//
// Deadlock freedom: a cluster goes through its share from the last work tile to the first. Hence the only partial sums
// that it may have to leave are those of its first iteration, in which it waits for no other cluster. It can only have
// to wait for other clusters in the last iteration of its share, and then for clusters before it. By that time the
// thread that waits has issued all loads of the first iteration, and other threads multiply, store and announce it. So
// it is enough that the clusters before have started. GPUs start the clusters of a launch in the order of their indices
// (CUDA does not promise it), and a cluster that has started keeps its SMs, whatever other launches, on any stream,
// occupy or wait for. A launch that starts early, by programmatic dependent launch, waits in all its blocks for a
// launch whose blocks have all started.
//
// An Edged kernel covers the last columns of C by residue tiles, which the clusters compute that have no other tile in
// the last wave.
//
// A Merged kernel computes work tiles of rows of several matrices (merged_rows.h).
//
// A grouped kernel computes work tiles of one group each. With groups of k, each work tile has k-tiles of its own.
#pragma once

#include <cstdint>
#include <type_traits>

#include "core/grouped.h"
#include "kernels/sm90_wgmma/config.h"
#include "kernels/sm90_wgmma/edges.h"
#include "kernels/sm90_wgmma/stream_k.h"
#include "kernels/sm90_wgmma/traits.cuh"
#include "ptx/cluster.cuh"
#include "ptx/ld_relaxed.cuh"
#include "ptx/shared.cuh"
#include "ptx/store.cuh"
#include "tile/raster.h"
#include "tile/triangle.h"

namespace hgemm::sm90_wgmma {

/// A cluster's work in one iteration, as seen by one of its blocks.
struct Work {
  int m0, n0;            // first row and column of the block's output tile
  int k_first, k_last;   // k-tiles, half-open
  int outer, inner;      // batch indices
  uint32_t helpers = 0;  // the number of clusters right before this one that leave partial sums of the tile to it
  bool is_edge = false;  // a residue tile (Edged)
  int k_begin = 0;       // GroupedK: the first k of the group
  int k_tail = 0;        // GroupedK: how many k of the last k-tile are the group's
  int row_end = 0;       // Grouped: the row behind the last one of the group. Rows from here on are not stored
};

/// Merged: `first` is where m0 counts rows from. Unless they are flat, m0 is 0 and `first` is the place of the tile's
/// first row.
struct MergedWork : Work {
  MergedRows::Place first = {0, 0};
};
template <class Traits>
using WorkOf = std::conditional_t<Traits::kMerged, MergedWork, Work>;

/// The block's rank in its cluster. It is read wherever it is needed, because it is not worth a register.
template <class Traits>
__device__ __forceinline__ uint32_t block_rank() {
  return Traits::kCluster == 1 ? 0 : ptx::cluster_rank();
}

/// The work of work tile `id` in the order of `raster`, in which blocks that run together share slices of A and B in
/// L2. Raster is tile::Raster or tile::Triangle.
template <class Traits, class Raster>
__device__ __forceinline__ Work work_at(const Params& p, const Raster& raster, uint32_t id) {
  const uint32_t rank = block_rank<Traits>();
  const int split = Traits::CK == 1 ? 0 : static_cast<int>(rank);
  const auto slice_begin = [&p](int slice) {  // the first k-tile of a slice
    if constexpr (Traits::CK == 1) return slice * p.k_tiles;
    return min((p.k_tiles + kSliceTiles - 1) / kSliceTiles * slice / Traits::CK * kSliceTiles, p.k_tiles);
  };
  const tile::RasterUnit unit = tile::unit_at(raster, id);
  const uint32_t outer = p.batch_inner.quotient(unit.batch);
  return {static_cast<int>((unit.row * Traits::CM + rank % Traits::CM) * Traits::BM),
          static_cast<int>((unit.col * Traits::CN + rank / Traits::CM % Traits::CN) * Traits::BN),
          slice_begin(split),
          slice_begin(split + 1),
          static_cast<int>(outer),
          static_cast<int>(unit.batch - outer * p.batch_inner.divisor())};
}

template <class Traits>
__device__ __forceinline__ Work work_at(const Params& p, uint32_t id) {
  return work_at<Traits>(p, p.raster, id);
}

enum class Order { kWhole, kStreamK, kEdged, kTriangle, kMerged, kGrouped, kGroupsK };

/// The work of a cluster, iteration by iteration. Here: every cluster computes whole work tiles.
template <class Traits, Order = Traits::kStreamK     ? Order::kStreamK
                                : Traits::kEdged     ? Order::kEdged
                                : Traits::kSymmetric ? Order::kTriangle
                                : Traits::kMerged    ? Order::kMerged
                                : Traits::kGrouped   ? Order::kGrouped
                                : Traits::kGroupsK   ? Order::kGroupsK
                                                     : Order::kWhole>
class TileScheduler {
 public:
  __device__ __forceinline__ TileScheduler(const Params& p, uint32_t) : p_(p) {}
  static __device__ __forceinline__ void start() {}
  __device__ __forceinline__ bool has(uint32_t turn) const { return unit(turn) < p_.units; }
  static __device__ __forceinline__ uint32_t partials() { return 0; }
  __device__ __forceinline__ Work work(uint32_t turn) const { return work_at<Traits>(p_, unit(turn)); }

 private:
  static __device__ __forceinline__ uint32_t unit(uint32_t turn) {
    return (blockIdx.x + turn * gridDim.x) / Traits::kCluster;
  }
  const Params& p_;
};

/// Edged: whole work tiles; in the last wave the clusters that have none compute residue tiles.
template <class Traits>
class TileScheduler<Traits, Order::kEdged> {
 public:
  __device__ __forceinline__ TileScheduler(const EdgedParams& p, uint32_t) : p_(p) {}
  static __device__ __forceinline__ void start() {}
  __device__ __forceinline__ bool has(uint32_t turn) const { return has_turn(p_.edges, cluster(), turn); }
  static __device__ __forceinline__ uint32_t partials() { return 0; }
  __device__ __forceinline__ Work work(uint32_t turn) const {
    if (is_whole(p_.edges, cluster(), turn)) return work_at<Traits>(p_, turn * p_.edges.clusters + cluster());
    const uint32_t edge = edge_of(p_.edges, cluster());
    const uint32_t col = p_.edge_rows.quotient(edge), row = edge - col * p_.edge_rows.divisor();
    Work work{};
    work.m0 = static_cast<int>((row * Traits::CM + block_rank<Traits>()) * 2 * Traits::BM);
    work.n0 = static_cast<int>(p_.edges.columns * Traits::BN + col * Traits::kEdge);
    work.k_last = p_.k_tiles;
    work.is_edge = true;
    return work;
  }

 private:
  static __device__ __forceinline__ uint32_t cluster() { return blockIdx.x / Traits::kCluster; }

  const EdgedParams& p_;
};

/// Symmetric: the work tiles that touch the upper triangle.
template <class Traits>
class TileScheduler<Traits, Order::kTriangle> {
 public:
  __device__ __forceinline__ TileScheduler(const SymmetricParams& p, uint32_t) : p_(p) {}
  static __device__ __forceinline__ void start() {}
  __device__ __forceinline__ bool has(uint32_t turn) const { return unit(turn) < p_.units; }
  static __device__ __forceinline__ uint32_t partials() { return 0; }
  __device__ __forceinline__ Work work(uint32_t turn) const { return work_at<Traits>(p_, p_.triangle, unit(turn)); }

 private:
  static __device__ __forceinline__ uint32_t unit(uint32_t turn) {
    return (blockIdx.x + turn * gridDim.x) / Traits::kCluster;
  }
  const SymmetricParams& p_;
};

/// Merged: the tiles of the raster's rows, which hold rows of several matrices.
template <class Traits>
class TileScheduler<Traits, Order::kMerged> {
 public:
  __device__ __forceinline__ TileScheduler(const MergedParams& p, uint32_t) : p_(p) {}
  static __device__ __forceinline__ void start() {}
  __device__ __forceinline__ bool has(uint32_t turn) const { return unit(turn) < p_.units; }
  static __device__ __forceinline__ uint32_t partials() { return 0; }
  __device__ __forceinline__ MergedWork work(uint32_t turn) const {
    MergedWork work{work_at<Traits>(p_, unit(turn))};
    if (!p_.merged.is_flat) {
      work.first = p_.merged.first_of(static_cast<uint32_t>(work.m0) / Traits::BM);
      work.m0 = 0;
    }
    return work;
  }

 private:
  static __device__ __forceinline__ uint32_t unit(uint32_t turn) {
    return (blockIdx.x + turn * gridDim.x) / Traits::kCluster;
  }
  const MergedParams& p_;
};

/// Stream-K: a cluster's share of the split work tiles, then whole work tiles. The head of this file says why the
/// kernel cannot deadlock.
template <class Traits>
class TileScheduler<Traits, Order::kStreamK> {
 public:
  __device__ __forceinline__ TileScheduler(const StreamKParams& p, uint32_t smem) : p_(p), smem_(smem) {}
  /// Called by one thread before the block's first barrier: writes the share to shared memory. The other functions read
  /// it wherever they need it, because consumers have no registers to keep it in.
  __device__ __forceinline__ void start() const {
    const Share share = share_of<Traits::kCutsSlices>(p_.split, p_.k_tiles, cluster());
    ptx::st_shared_16(smem_, {share.first, share.last, share.pieces, share.partials});
  }
  __device__ __forceinline__ bool has(uint32_t turn) const { return turn < read(kPieces) + p_.split.waves; }
  /// The number of iterations that end before their work tile does: 1 if the first one does, else 0.
  __device__ __forceinline__ uint32_t partials() const { return read(kPartials); }

  __device__ __forceinline__ Work work(uint32_t turn) const {
    const uint32_t pieces = read(kPieces);
    if (turn >= pieces) {
      return work_at<Traits>(p_, p_.split.units + (turn - pieces) * p_.split.clusters + cluster());
    }
    const Piece piece = piece_of<Traits::kCutsSlices>(p_.split, p_.k_tiles, cluster(), read(kFirst), read(kLast), turn);
    Work work = work_at<Traits>(p_, piece.unit);
    work.k_first = static_cast<int>(piece.k_first);
    work.k_last = static_cast<int>(piece.k_last);
    work.helpers = piece.helpers;
    return work;
  }

 private:
  enum Word { kFirst, kLast, kPieces, kPartials };  // of the Share in shared memory

  static __device__ __forceinline__ uint32_t cluster() { return blockIdx.x / Traits::kCluster; }
  /// Volatile, because the compiler would otherwise keep the words in registers.
  __device__ __forceinline__ uint32_t read(Word word) const {
    return *static_cast<const volatile uint32_t*>(__cvta_shared_to_generic(smem_ + word * sizeof(uint32_t)));
  }

  const StreamKParams& p_;
  uint32_t smem_;  // 16 bytes
};

/// Grouped: work tiles of one group each. The block makes a table of its work tiles at its start, since only the device
/// knows the groups.
template <class Traits>
class TileScheduler<Traits, Order::kGrouped> {
 public:
  __device__ __forceinline__ TileScheduler(const GroupedParams& p, uint32_t smem) : p_(p), smem_(smem) {}

  /// Called by all threads, after the wait for the kernels before this one: writes the table. `scratch` is shared
  /// memory of kScratchBytes bytes that is free afterwards.
  ///
  /// Ends that decrease, or lie beyond the rows, are errors of the caller. Every row of a tile is a row of D even then,
  /// and a cluster has at most kMaxTurns tiles.
  __device__ __forceinline__ void start(unsigned char* scratch) const {
    auto* const first = reinterpret_cast<uint32_t*>(scratch);  // (groups + 1): row tiles before a group
    auto* const begin = reinterpret_cast<int*>(first + Traits::kMaxGroups + 4);     // (groups)
    auto* const end = begin + Traits::kMaxGroups;                                   // (groups)
    auto* const warp_sums = reinterpret_cast<uint32_t*>(end + Traits::kMaxGroups);  // (3, kWarps)
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const auto other_rows = static_cast<uint32_t>(p_.tiles[p_.launch == Launch::kFirst].rows);
    uint32_t before = 0, of_other = 0;  // row tiles of this kernel and, in this thread's groups, of the other launch's
    int groups_with_rows = 0;
    for (int chunk = 0; chunk < p_.groups; chunk += Traits::kThreads) {
      const int g = chunk + static_cast<int>(threadIdx.x);
      uint32_t tiles = 0;
      if (g < p_.groups) {
        begin[g] = g == 0 ? 0 : min(max(end_of(g - 1), 0), p_.rows);
        end[g] = min(max(end_of(g), begin[g]), p_.rows);
        tiles = static_cast<uint32_t>(end[g] - begin[g] + Traits::kGroupRows - 1) / Traits::kGroupRows;
        if (compares_tiles()) of_other += (static_cast<uint32_t>(end[g] - begin[g]) + other_rows - 1) / other_rows;
      }
      uint32_t sum = tiles;
#pragma unroll
      for (int step = 1; step < 32; step *= 2) {
        const uint32_t other = __shfl_up_sync(~0u, sum, step);
        if (lane >= step) sum += other;
      }
      uint32_t* const sums = warp_sums + chunk / Traits::kThreads % 2 * kWarps;
      if (lane == 31) sums[warp] = sum;
      groups_with_rows += __syncthreads_count(tiles > 0);
      uint32_t all = 0;
#pragma unroll
      for (int w = 0; w < kWarps; ++w) {
        if (w == warp) sum += before + all;
        all += sums[w];
      }
      if (g < p_.groups) first[g + 1] = sum;
      before += all;
    }
    if (threadIdx.x == 0) first[0] = 0;
    if (compares_tiles()) {
      of_other = __reduce_add_sync(~0u, of_other);
      if (lane == 0) warp_sums[2 * kWarps + warp] = of_other;
    }
    __syncthreads();
    bool is_second = end[p_.groups - 1] > p_.few_rows * groups_with_rows;
    if (compares_tiles()) is_second = is_second_faster(before, warp_sums + 2 * kWarps);
    const bool is_other = p_.launch == (is_second ? Launch::kFirst : Launch::kSecond);
    const uint32_t units = is_other ? 0 : before * p_.columns;
    const uint32_t turns = units <= cluster() ? 0 : (units - cluster() - 1) / p_.clusters + 1;
    if (threadIdx.x == 0) ptx::st_shared_4(smem_, min(turns, static_cast<uint32_t>(Traits::kMaxTurns)));
    if (threadIdx.x < min(turns, static_cast<uint32_t>(Traits::kMaxTurns))) {
      const uint32_t unit = cluster() + threadIdx.x * p_.clusters;
      uint32_t low = 0, high = static_cast<uint32_t>(p_.groups) - 1;  // the unit's group is the first with a later end
      while (low < high) {
        const uint32_t middle = (low + high) / 2;
        if (first[middle + 1] * p_.columns > unit) {
          high = middle;
        } else {
          low = middle + 1;
        }
      }
      // Column by column in panels of rows, as tile::unit_at.
      const uint32_t in_group = unit - first[low] * p_.columns, height = first[low + 1] - first[low];
      const uint32_t panel = in_group / (p_.panel * p_.columns), in_panel = in_group - panel * p_.panel * p_.columns;
      const uint32_t panel_height = min(p_.panel, height - panel * p_.panel);
      const uint32_t column = in_panel / panel_height;
      const int row =
          begin[low] + static_cast<int>((panel * p_.panel + in_panel - column * panel_height) * Traits::kGroupRows);
      const uint32_t rows = static_cast<uint32_t>(max(min(end[low] - row, Traits::kGroupRows), 0));
      const uint32_t at = entry(threadIdx.x);
      ptx::st_shared_4(at, static_cast<uint32_t>(row));
      ptx::st_shared_4(at + 4, low | rows << kGroupBits | column << (kGroupBits + kRowBits));
    }
    __syncthreads();
  }
  __device__ __forceinline__ bool has(uint32_t turn) const { return turn < read(smem_); }
  static __device__ __forceinline__ uint32_t partials() { return 0; }

  __device__ __forceinline__ Work work(uint32_t turn) const {
    const int row = static_cast<int>(read(entry(turn)));
    const uint32_t rest = read(entry(turn) + 4), rank = block_rank<Traits>();
    const uint32_t column = rest >> (kGroupBits + kRowBits);
    Work work{};
    work.k_last = p_.k_tiles;
    work.inner = static_cast<int>(rest % (1u << kGroupBits));
    work.row_end = row + static_cast<int>(rest >> kGroupBits & ((1u << kRowBits) - 1));
    if constexpr (Traits::kSwapped) {
      work.m0 = static_cast<int>(column * Traits::BM);
      work.n0 = row;
    } else {
      work.m0 = row + static_cast<int>(rank % Traits::CM) * Traits::BM;
      work.n0 = static_cast<int>((column * Traits::CN + rank / Traits::CM) * Traits::BN);
    }
    return work;
  }

 private:
  static constexpr int kWarps = Traits::kThreads / 32;
  // An entry of the table is the first row, and in one word the group, the rows that belong to it, and the column.
  static constexpr int kGroupBits = 10, kRowBits = 9;
  static_assert(Traits::kMaxGroups <= 1 << kGroupBits && Traits::kGroupRows < 1 << kRowBits);
  static_assert(4 * (3 * Traits::kMaxGroups + 4 + 3 * kWarps) <= Traits::kStagingBuffers * Traits::kStagingBytes);

  static __device__ __forceinline__ uint32_t cluster() { return blockIdx.x / Traits::kCluster; }
  __device__ __forceinline__ int end_of(int group) const { return ptx::ld_relaxed_4(p_.ends + group); }
  /// Whether this is one of two launches, of which the one whose work tiles take less time computes the product.
  __device__ __forceinline__ bool compares_tiles() const { return p_.launch != Launch::kOnly && p_.few_rows == 0; }
  /// `own`: the row tiles of this kernel. `of_other`: those of the other launch's, a sum for each warp.
  __device__ __forceinline__ bool is_second_faster(uint32_t own, const uint32_t* of_other) const {
    uint32_t other = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) other += of_other[w];
    const bool is_first = p_.launch == Launch::kFirst;
    return p_.tiles[1].product_ns(is_first ? other : own) < p_.tiles[0].product_ns(is_first ? own : other);
  }
  __device__ __forceinline__ uint32_t entry(uint32_t turn) const { return smem_ + 8 + turn * 8; }
  /// Volatile, because the compiler would otherwise keep the words in registers.
  static __device__ __forceinline__ uint32_t read(uint32_t at) {
    return *static_cast<const volatile uint32_t*>(__cvta_shared_to_generic(at));
  }

  const GroupedParams& p_;
  uint32_t smem_;  // 8 bytes, the first of which hold the number of work tiles; then the table
};

/// GroupedK: the k-tiles of a work tile are those of its group, from the group's first k on. A group without any k has
/// one k-tile, of zeros. If most groups have none, they have no work tiles, unless rows of D are padded: the warps that
/// neither load nor multiply write their zeros (fill()).
///
/// Where groups have many k, the clusters take work tiles in the order of their k-tiles, most first, and in every
/// second round from the last cluster to the first (GroupedKParams::sorts). So no cluster has much more work than
/// others, however the groups differ.
template <class Traits>
class TileScheduler<Traits, Order::kGroupsK> {
 public:
  __device__ __forceinline__ TileScheduler(const GroupedKParams& p, uint32_t smem) : p_(p), smem_(smem) {}

  /// Called by all threads, after the wait for the kernels before this one: copies the groups' ends, and lists the
  /// groups in the order of their work tiles, those without any last.
  __device__ __forceinline__ void start(unsigned char*) const {
    if (threadIdx.x == 0) ptx::st_shared_4(end_before(0), 0);
    for (int g = static_cast<int>(threadIdx.x); g < p_.groups; g += Traits::kThreads) {
      ptx::st_shared_4(end_before(g + 1), static_cast<uint32_t>(min(max(ptx::ld_relaxed_4(p_.ends + g), 0), p_.k)));
    }
    __syncthreads();
    int empty = 0;
    bool one_has_half = false;
    for (int chunk = 0; chunk < p_.groups; chunk += Traits::kThreads) {
      const int g = chunk + static_cast<int>(threadIdx.x), count = g < p_.groups ? span_of(g).count : 1;
      empty += __syncthreads_count(count == 0);
      one_has_half |= __syncthreads_or(g < p_.groups && count >= (p_.k + 1) / 2) != 0;
    }
    const bool is_other = p_.launch == (one_has_half ? Launch::kFirst : Launch::kSecond);
    const int filled = p_.fills && 2 * empty > p_.groups && !is_other ? empty : 0;
    if (threadIdx.x == 0) {
      const uint32_t units = static_cast<uint32_t>(p_.groups - filled) * p_.raster.per_batch.divisor();
      ptx::st_shared_4(smem_, is_other ? 0 : units);
      ptx::st_shared_4(smem_ + 4, static_cast<uint32_t>(filled));
    }
    if (!is_other) p_.sorts ? sort() : list(filled);
    __syncthreads();
  }
  __device__ __forceinline__ bool has(uint32_t turn) const { return unit(turn) < static_cast<uint32_t>(read(smem_)); }
  /// Called by the threads of kFillWarps warps, of which this is number `thread`: writes zeros for the groups without
  /// k. All blocks together write one matrix after the other, each block kFillBytes of it at a time.
  __device__ __forceinline__ void fill(int thread) const {
    // Few registers are left to these warps, so the loop over the bytes is not unrolled.
    const int filled = read(smem_ + 4);
    const uint32_t pieces = static_cast<uint32_t>(filled) * p_.filled_pieces.divisor();
#pragma unroll 1
    for (uint32_t i = blockIdx.x; i < pieces; i += gridDim.x) {
      const uint32_t matrix = p_.filled_pieces.quotient(i), piece = i - matrix * p_.filled_pieces.divisor();
      const int group = group_of(p_.groups - filled + static_cast<int>(matrix));
      auto* at = static_cast<unsigned char*>(p_.epilogue.d) + group * p_.matrix_bytes + thread * 16;
      at += int64_t{piece} * Traits::kFillBytes;
      int left = (piece + 1 == p_.filled_pieces.divisor() ? p_.last_piece_bytes : Traits::kFillBytes) - thread * 16;
#pragma unroll 1
      for (; left > 0; left -= Traits::kFillWarps * 32 * 16, at += Traits::kFillWarps * 32 * 16) {
        ptx::st_once_16(at, {0, 0, 0, 0});
      }
    }
  }
  static __device__ __forceinline__ uint32_t partials() { return 0; }
  __device__ __forceinline__ Work work(uint32_t turn) const {
    Work work = work_at<Traits>(p_, unit(turn));
    work.inner = group_of(work.inner);
    const Span span = span_of(work.inner);
    work.k_begin = span.begin;
    work.k_last = span.tiles();
    work.k_tail = span.count - (span.tiles() - 1) * Traits::BK;
    return work;
  }
  /// The number of k-tiles of an iteration's work tile.
  __device__ __forceinline__ uint32_t k_tiles(uint32_t turn) const {
    const int group = group_of(static_cast<int>(p_.raster.per_batch.quotient(unit(turn))));
    return static_cast<uint32_t>(span_of(group).tiles());
  }

 private:
  /// Lists the groups by their k, most first, those without any last.
  __device__ __forceinline__ void sort() const {
    for (int g = static_cast<int>(threadIdx.x); g < p_.groups; g += Traits::kThreads) {
      const int count = span_of(g).count;
      int rank = 0;
#pragma unroll 4
      for (int other = 0; other < p_.groups; ++other) {
        const int of_other = span_of(other).count;
        rank += of_other > count || (of_other == count && other < g);
      }
      ptx::st_shared_4(ranked(rank), static_cast<uint32_t>(g));
    }
  }
  /// Lists the groups as they are in memory, the `filled` groups without k last if they are not 0.
  __device__ __forceinline__ void list(int filled) const {
    if (threadIdx.x >= 32) return;
    int with_k = 0;  // of the groups before
    for (int first = 0; first < p_.groups; first += 32) {
      const int g = first + static_cast<int>(threadIdx.x);
      const bool has_k = g < p_.groups && (filled == 0 || span_of(g).count > 0);
      const uint32_t all = __ballot_sync(~0u, has_k);
      const int before = with_k + __popc(all & ((1u << threadIdx.x) - 1));
      if (g < p_.groups)
        ptx::st_shared_4(ranked(has_k ? before : p_.groups - filled + g - before), static_cast<uint32_t>(g));
      with_k += __popc(all);
    }
  }

  struct Span {
    int begin, count;
    __device__ __forceinline__ int tiles() const { return max((count + Traits::BK - 1) / Traits::BK, 1); }
  };
  __device__ __forceinline__ uint32_t unit(uint32_t turn) const {
    const uint32_t block = p_.sorts && turn % 2 == 1 ? gridDim.x - 1 - blockIdx.x : blockIdx.x;
    return (block + turn * gridDim.x) / Traits::kCluster;
  }
  /// Volatile, because the compiler would otherwise keep the words in registers.
  static __device__ __forceinline__ int read(uint32_t at) {
    return *static_cast<const volatile int*>(__cvta_shared_to_generic(at));
  }
  /// Where the end of the group before is kept, and the group at a place in the order of work tiles.
  __device__ __forceinline__ uint32_t end_before(int group) const { return smem_ + 4 * (2 + group); }
  __device__ __forceinline__ uint32_t ranked(int rank) const { return smem_ + 4 * (3 + p_.groups + rank); }
  __device__ __forceinline__ int group_of(int rank) const { return read(ranked(rank)); }
  __device__ __forceinline__ Span span_of(int group) const {
    const int begin = read(end_before(group));
    return {begin, max(read(end_before(group + 1)) - begin, 0)};
  }

  const GroupedKParams& p_;
  // The number of work tiles, and of groups to fill; the end of each group, after a 0; the groups in the order of their
  // work tiles.
  uint32_t smem_;
};

}  // namespace hgemm::sm90_wgmma
