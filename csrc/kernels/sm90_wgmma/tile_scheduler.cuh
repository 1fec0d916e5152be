// The tile scheduler: which tiles a cluster computes, in which order, and of which steps of K.
//
// A stream-K kernel first shares out the steps of the tiles that do not fill a wave, evenly among all clusters: the
// part of a tile that a cluster does not end goes to memory as partial sums, and the cluster that ends the tile adds
// them, from its neighbour's on to those of smaller index: always in the same order, whoever is done first.
//
// Deadlock freedom: a cluster goes through its share from the last tile to the first. So the one part that it may have
// to leave is its first turn, in which it waits for no other cluster, and if it has to wait for parts that others
// leave, then in the last turn of its share, for clusters before it. By then the thread that waits has loaded all of
// the first turn, which other threads multiply, write and announce. Hence it is enough that the clusters before have
// started: GPUs start those of a launch in the order of their indices (CUDA does not promise it), and a cluster that
// has started keeps its SMs, whatever other launches, on any stream, hold or want. A launch that starts early, by
// programmatic dependent launch, waits in all its blocks for one whose blocks have all started.
//
// An edged kernel covers the last columns of C by tiles of another shape, for the clusters that have no tile in the
// last wave.
#pragma once

#include <cstdint>

#include "kernels/sm90_wgmma/config.h"
#include "kernels/sm90_wgmma/edges.h"
#include "kernels/sm90_wgmma/stream_k.h"
#include "kernels/sm90_wgmma/traits.cuh"
#include "ptx/cluster.cuh"
#include "ptx/shared.cuh"
#include "tile/raster.h"

namespace hgemm::sm90_wgmma {

/// One cluster's work as one of its blocks sees it.
struct Work {
  int m0, n0;
  int k_first, k_last;   // tiles of K, half-open
  int outer, inner;      // batch
  uint32_t helpers = 0;  // clusters right before this one that leave partial sums of the tile to it
  bool is_edge = false;  // one of Edged's other tiles
};

/// Read where it is needed: it is not worth a register.
template <class Traits>
__device__ __forceinline__ uint32_t block_rank() {
  return Traits::kCluster == 1 ? 0 : ptx::cluster_rank();
}

/// Blocks that run together share slices of A and B in L2.
template <class Traits>
__device__ __forceinline__ Work work_at(const Params& p, uint32_t id) {
  const uint32_t rank = block_rank<Traits>();
  const int split = Traits::CK == 1 ? 0 : static_cast<int>(rank);
  const tile::RasterUnit unit = tile::unit_at(p.raster, id);
  const uint32_t outer = p.batch_inner.quotient(unit.batch);
  return {static_cast<int>((unit.row * Traits::CM + rank % Traits::CM) * Traits::BM),
          static_cast<int>((unit.col * Traits::CN + rank / Traits::CM % Traits::CN) * Traits::BN),
          p.k_tiles * split / Traits::CK,
          p.k_tiles * (split + 1) / Traits::CK,
          static_cast<int>(outer),
          static_cast<int>(unit.batch - outer * p.batch_inner.divisor())};
}

enum class Order { kWhole, kStreamK, kEdged };

/// What a cluster does, turn by turn.
template <class Traits, Order = Traits::kStreamK ? Order::kStreamK
                                : Traits::kEdged ? Order::kEdged
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

/// Whole units, and for the last clusters an edge at the end instead of another of those.
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

/// Stream-K: the share of the split units, then whole units. The head of this file says why it cannot deadlock.
template <class Traits>
class TileScheduler<Traits, Order::kStreamK> {
 public:
  __device__ __forceinline__ TileScheduler(const StreamKParams& p, uint32_t smem) : p_(p), smem_(smem) {}
  /// By one thread, before the block's first barrier. What follows is read where it is needed: consumers have no
  /// registers to keep it in.
  __device__ __forceinline__ void start() const {
    const Share share = share_of(p_.split, p_.k_tiles, cluster());
    ptx::st_shared_16(smem_, {share.first, share.last, share.pieces, share.partials});
  }
  __device__ __forceinline__ bool has(uint32_t turn) const { return turn < read(kPieces) + p_.split.waves; }
  /// Turns that end before their unit does: the first one, if any.
  __device__ __forceinline__ uint32_t partials() const { return read(kPartials); }

  __device__ __forceinline__ Work work(uint32_t turn) const {
    const uint32_t pieces = read(kPieces);
    if (turn >= pieces) {
      return work_at<Traits>(p_, p_.split.units + (turn - pieces) * p_.split.clusters + cluster());
    }
    const Piece piece = piece_of(p_.split, p_.k_tiles, cluster(), read(kFirst), read(kLast), turn);
    Work work = work_at<Traits>(p_, piece.unit);
    work.k_first = static_cast<int>(piece.k_first);
    work.k_last = static_cast<int>(piece.k_last);
    work.helpers = piece.helpers;
    return work;
  }

 private:
  enum Word { kFirst, kLast, kPieces, kPartials };  // of the Share in shared memory

  static __device__ __forceinline__ uint32_t cluster() { return blockIdx.x / Traits::kCluster; }
  /// Volatile: the compiler would keep what it has read.
  __device__ __forceinline__ uint32_t read(Word word) const {
    return *static_cast<const volatile uint32_t*>(__cvta_shared_to_generic(smem_ + word * sizeof(uint32_t)));
  }

  const StreamKParams& p_;
  uint32_t smem_;  // 16 bytes
};

}  // namespace hgemm::sm90_wgmma
