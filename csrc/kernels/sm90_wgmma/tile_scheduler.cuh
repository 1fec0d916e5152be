// The tile scheduler: which work tiles a cluster computes, in which order, and which k-tiles of each.
//
// A work tile is the output tiles of one cluster (a unit in identifiers). An iteration of a cluster's persistent loop
// computes one work tile or, with stream-K, a segment of one (a turn in identifiers is the iteration's index).
//
// A stream-K kernel first distributes the k-tiles of the work tiles that do not fill a wave evenly over all clusters. A
// cluster that computes a part of a tile without its last k-tile stores its accumulators to memory as partial sums. The
// cluster that computes the last k-tile adds them, first those of the cluster right before it, then those of smaller
// indices. So the order of summation does not depend on which cluster finishes first.
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
#pragma once

#include <cstdint>

#include "kernels/sm90_wgmma/config.h"
#include "kernels/sm90_wgmma/edges.h"
#include "kernels/sm90_wgmma/stream_k.h"
#include "kernels/sm90_wgmma/traits.cuh"
#include "ptx/cluster.cuh"
#include "ptx/shared.cuh"
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
};

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
  const tile::RasterUnit unit = tile::unit_at(raster, id);
  const uint32_t outer = p.batch_inner.quotient(unit.batch);
  return {static_cast<int>((unit.row * Traits::CM + rank % Traits::CM) * Traits::BM),
          static_cast<int>((unit.col * Traits::CN + rank / Traits::CM % Traits::CN) * Traits::BN),
          p.k_tiles * split / Traits::CK,
          p.k_tiles * (split + 1) / Traits::CK,
          static_cast<int>(outer),
          static_cast<int>(unit.batch - outer * p.batch_inner.divisor())};
}

template <class Traits>
__device__ __forceinline__ Work work_at(const Params& p, uint32_t id) {
  return work_at<Traits>(p, p.raster, id);
}

enum class Order { kWhole, kStreamK, kEdged, kTriangle };

/// The work of a cluster, iteration by iteration. Here: every cluster computes whole work tiles.
template <class Traits, Order = Traits::kStreamK     ? Order::kStreamK
                                : Traits::kEdged     ? Order::kEdged
                                : Traits::kSymmetric ? Order::kTriangle
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

/// Stream-K: a cluster's share of the split work tiles, then whole work tiles. The head of this file says why the
/// kernel cannot deadlock.
template <class Traits>
class TileScheduler<Traits, Order::kStreamK> {
 public:
  __device__ __forceinline__ TileScheduler(const StreamKParams& p, uint32_t smem) : p_(p), smem_(smem) {}
  /// Called by one thread before the block's first barrier: writes the share to shared memory. The other functions read
  /// it wherever they need it, because consumers have no registers to keep it in.
  __device__ __forceinline__ void start() const {
    const Share share = share_of(p_.split, p_.k_tiles, cluster());
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
  /// Volatile, because the compiler would otherwise keep the words in registers.
  __device__ __forceinline__ uint32_t read(Word word) const {
    return *static_cast<const volatile uint32_t*>(__cvta_shared_to_generic(smem_ + word * sizeof(uint32_t)));
  }

  const StreamKParams& p_;
  uint32_t smem_;  // 16 bytes
};

}  // namespace hgemm::sm90_wgmma
