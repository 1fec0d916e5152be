// The tensor-core GEMM for Hopper (sm_90a): TMA feeds a ring of shared-memory stages, wgmma multiplies out of them.
//
// A block of three warpgroups stays on its SM and walks tiles of C. One thread of the producer warpgroup runs ahead and
// keeps the ring full, across tile borders; two consumer warpgroups multiply, with one group of wgmma in flight, and
// write their results. In pingpong form each consumer owns every other tile, so that the epilogue of one runs under the
// main loop of the other; in cooperative form they share the rows of a tile that would not fit one warpgroup's
// registers. In a cluster along M or N each block loads half of the operand tile that both need and multicasts it; in a
// cluster along K the blocks split the sum of one tile and reduce it through distributed shared memory.
//
// A stream-K kernel first shares out the steps of the tiles that do not fill a wave, evenly among all clusters: the
// part of a tile that a cluster does not end goes to memory as partial sums, and the cluster that ends the tile adds
// them, from its neighbour's on to those of smaller index: always in the same order, whoever is done first.
//
// Nobody waits for ever. A cluster goes through its share from the last tile to the first. So the one part that it may
// have to leave is its first turn, in which it waits for no other cluster, and if it has to wait for parts that others
// leave, then in the last turn of its share, for clusters before it. By then the thread that waits has loaded all of
// the first turn, which other threads multiply, write and announce. Hence it is enough that the clusters before have
// started: GPUs start those of a launch in the order of their indices (CUDA does not promise it), and a cluster that
// has started keeps its SMs, whatever other launches, on any stream, hold or want. A launch that starts early, as
// below, waits in all its blocks for one whose blocks have all started.
//
// An edged kernel covers the last columns of C by tiles of another shape, for the clusters that have no tile in the
// last wave.
//
// Both operands may be K-major or MN-major: stages hold what lies in memory, in 128-byte swizzle, and wgmma transposes.
//
// A launch may start while its predecessor in the stream drains (programmatic dependent launch): blocks set up their
// barriers, find their first tile and have its first step brought to L2, then wait for everything before them. Partial
// sums and flags, too, may lie where that one still reads and writes its own.
#pragma once

#include <cuda.h>

#include <type_traits>

#include "core/convert.cuh"
#include "core/fast_divisor.h"
#include "core/problem.h"
#include "kernels/sm90_wgmma/config.h"
#include "ptx/approx.cuh"
#include "ptx/bulk.cuh"
#include "ptx/cluster.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/dependent_launch.cuh"
#include "ptx/flag.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/shared.cuh"
#include "ptx/stmatrix.cuh"
#include "ptx/tma.cuh"
#include "ptx/wgmma.cuh"
#include "tile/chunk.cuh"
#include "tile/epilogue.cuh"
#include "tile/fast_activation.cuh"
#include "tile/raster.h"

namespace hgemm::sm90_wgmma {

/// What the kernel is compiled for.
template <class Config_, class T_, Major kMajorA_, Major kMajorB_>
struct Traits : Config_ {
  using T = T_;
  static constexpr Major kMajorA = kMajorA_, kMajorB = kMajorB_;
  /// The layout of linear layers, where activations are worth unrolled code.
  static constexpr bool kIsLinear = kMajorA == Major::kK && kMajorB == Major::kK;
  static constexpr bool kSwapped = false;
};

/// The product as D^T = B^T A^T, for row-major A. BN then counts rows of A, which a K-major tile may have as many of as
/// it likes; a tile of an MN-major B begins on a line only where BN is a multiple of 64.
template <class Config, class T, Major kMajorB>
struct SwappedTraits : Traits<Config, T, kMajorB, Major::kK> {
  static constexpr bool kSwapped = true;
};

struct Params {
  CUtensorMap a, b, d;
  int32_t a_batch[2], b_batch[2];  // outer, inner: 0 where a batch index does not move the operand, else ~0
  int k_tiles;
  uint32_t units;  // of work: the tiles of one cluster
  tile::Raster raster;
  FastDivisor batch_inner;
  int m, n;
  int pitch_b;     // columns of an MN-major B from tile to tile, where BN does not say it
  bool store_tma;  // D is 16-bit and TMA can write it
  Finish finish;
  bool defers;               // a tile's results are written under the next one's main loop
  bool bias_pairs, c_pairs;  // there is one, and it can be read two elements at a time
  tile::EpilogueParams epilogue;
};

/// What stream-K needs beside that.
struct StreamKParams : Params {
  Split split;
  unsigned char* partials;  // (blocks, kPartialBytes)
  uint64_t* flags;          // (blocks): `tag` once the block's partial sums are complete, 0 once they have been used
  uint64_t tag;             // no other launch has it
};

/// What Edged needs beside that; the raster is that of the whole units.
struct EdgedParams : Params {
  CUtensorMap b_edge;
  Edges edges;
  FastDivisor edge_rows;
};

template <class Traits>
using ParamsOf =
    std::conditional_t<Traits::kStreamK, StreamKParams, std::conditional_t<Traits::kEdged, EdgedParams, Params> >;

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
class Walk {
 public:
  __device__ __forceinline__ Walk(const Params& p, uint32_t) : p_(p) {}
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
class Walk<Traits, Order::kEdged> {
 public:
  __device__ __forceinline__ Walk(const EdgedParams& p, uint32_t) : p_(p) {}
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

/// Stream-K: the share of the split units, then whole units. See the head of this file for why nobody waits for ever.
template <class Traits>
class Walk<Traits, Order::kStreamK> {
 public:
  __device__ __forceinline__ Walk(const StreamKParams& p, uint32_t smem) : p_(p), smem_(smem) {}
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

/// Named barriers, behind that of __syncthreads; of some there is one for each consumer warpgroup.
struct NamedBarrier {
  static constexpr int kTurn = 1;        // (2) pingpong: the warpgroup may multiply
  static constexpr int kLeft = 3;        // stream-K: a turn's partial sums are in memory
  static constexpr int kMultiplied = 4;  // (2) its warps have read the last stage
  static constexpr int kPiece = 6;       // (2) swapped: its warps share the staging of a piece
  static constexpr int kAdded = 8;       // split K: all sums have been read
};

/// Position in the ring; `parity` flips with every turn.
template <int STAGES>
struct Ring {
  uint32_t stage = 0, parity = 0;
  __device__ __forceinline__ void advance() {
    if (++stage == STAGES) {
      stage = 0;
      parity ^= 1;
    }
  }
  __device__ __forceinline__ void skip(uint32_t steps) {
    const uint32_t at = stage + steps;
    parity ^= at / STAGES & 1;
    stage = at % STAGES;
  }
};

/// One operand's tile of EXTENT outer indices by BK in a stage, and how SHARERS blocks load it together.
/// K-major: EXTENT lines of 64 k. MN-major: for each 64 outer indices, BK lines of them.
template <int EXTENT, int BK, Major kMajor, int SHARERS>
struct SmemOperand {
  static_assert(BK == 64, "a K-major line is one swizzle span of 64 elements");
  static constexpr bool kIsKMajor = kMajor == Major::kK;
  static constexpr int kTranspose = kIsKMajor ? 0 : 1;
  static constexpr int kLine = 128, kChunkBytes = BK * kLine;
  static constexpr int kChunks = (EXTENT + 63) / 64;
  static constexpr int kLines = kIsKMajor ? EXTENT : BK;  // of a chunk
  // A box starts and ends on a swizzle atom: those of two sharers may overlap, and write the same there.
  static constexpr int kBoxRows = (kLines / SHARERS + 7) / 8 * 8;
  static constexpr int kLoadedBytes = SHARERS * kBoxRows * kLine * (kIsKMajor ? 1 : kChunks);
  static constexpr int kStepBytes = kIsKMajor ? 32 : 16 * kLine;  // to the next 16 k
  static_assert(kLines % 8 == 0 && SHARERS <= 2);

  /// Loads this block's share of the tile at (outer, k).
  static __device__ __forceinline__ void load(uint32_t dst, uint32_t bar, const CUtensorMap& map, int outer, int k,
                                              int batch_inner, int batch_outer, uint32_t share) {
    each_box(outer, k, batch_inner, batch_outer, share,
             [&](int offset, ptx::TmaCoord at) { load_box(dst + offset, map, bar, at); });
  }
  /// Brings it to L2.
  static __device__ __forceinline__ void prefetch(const CUtensorMap& map, int outer, int k, int batch_inner,
                                                  int batch_outer, uint32_t share) {
    each_box(outer, k, batch_inner, batch_outer, share,
             [&](int, ptx::TmaCoord at) { ptx::tma_prefetch_box(&map, at); });
  }
  /// Descriptor of the tile from outer index `first`, a multiple of 64, on.
  static __device__ __forceinline__ uint64_t descriptor(uint32_t tile, int first) {
    static_assert(64 * kLine == kChunkBytes, "64 outer indices take the same space in both orders");
    return ptx::wgmma_descriptor(tile + first * kLine, kChunkBytes, 8 * kLine);
  }

 private:
  template <class Visit>
  static __device__ __forceinline__ void each_box(int outer, int k, int batch_inner, int batch_outer, uint32_t share,
                                                  const Visit& visit) {
    const int first = static_cast<int>(share) * (kLines - kBoxRows);
    if constexpr (kIsKMajor) {
      visit(first * kLine, ptx::TmaCoord{k, outer + first, batch_inner, batch_outer});
    } else {
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
        visit(c * kChunkBytes + first * kLine, ptx::TmaCoord{outer + c * 64, k + first, batch_inner, batch_outer});
      }
    }
  }
  static __device__ __forceinline__ void load_box(uint32_t dst, const CUtensorMap& map, uint32_t bar,
                                                  ptx::TmaCoord at) {
    if constexpr (SHARERS == 1) {
      ptx::tma_load(dst, &map, bar, at);
    } else {
      ptx::tma_load_multicast(dst, &map, bar, at, (1 << SHARERS) - 1);
    }
  }
};

/// B of an edge.
template <class Traits>
using SmemEdge = SmemOperand<Traits::kEdge, Traits::BK, Traits::kMajorB, Traits::CM>;

/// What a consumer thread has of an edge: twice 64 rows of 128 columns.
using EdgeAccumulators = float[2][64];
template <class Acc>
constexpr bool is_edge = std::is_same_v<std::remove_const_t<Acc>, EdgeAccumulators>;

/// The result of a consumer warpgroup on its way to memory, 32 columns (a half) at a time, of which each warp has 16
/// rows. 16-bit results pass through swizzled staging, where two halves make a piece that TMA writes, one for each
/// warp; where D is not aligned for TMA, the warp copies it out itself. fp32 results are stored from registers. Warps
/// work alone, but in swapped kernels, whose lines of D begin in one warp and end in another: there the four share a
/// piece.
///
/// A cooperative tile has no other one to hide its epilogue under, but registers to spare: its results are only rounded
/// at once, and go to memory half by half between the first steps of the next tile.
template <class Traits>
class Epilogue {
  using T = typename Traits::T;
  static constexpr int BN = Traits::BN, MI = Traits::WM / 64;
  static constexpr int kLine = 128;  // bytes of a staging row
  static constexpr int kPiecesPerRow = (BN + 63) / 64, kHalves = Traits::kHalves;

 public:
  using Accumulators = float[MI][BN / 2];

  /// `staging`: this warp's buffers, kStagingBytes apart.
  __device__ __forceinline__ Epilogue(const Params& p, uint32_t staging)
      : p_(p), staging_(staging), lane_(threadIdx.x % 32) {}
  /// For the block's last tile: a ring into which nothing comes any more has a buffer for each of its pieces.
  __device__ __forceinline__ void stage_in_ring(uint32_t ring) {
    staging_ = ring;
    sent_ = 0;
    reuses_ = false;
  }

  /// Takes the warpgroup's accumulators to memory; this warp's rows of the first 64 start at row0. With `defer` the
  /// last step may be left to send_deferred().
  template <class Acc>
  __device__ __forceinline__ void store(const Acc& acc, int row0, const Work& work, bool defer) {
    if constexpr (Traits::kSwapped) return store_unrolled<false, Activation::kNone>(acc, row0, work, defer);
    if constexpr (Traits::kCopies) {
      // Chosen once a tile: between its pieces the code of the other way would have to be jumped over.
      if (!p_.store_tma && p_.finish == Finish::kScale) {
        return store_unrolled<false, Activation::kNone, true>(acc, row0, work, false);
      }
      if (!p_.store_tma && p_.finish == Finish::kBiasRelu) {
        return store_unrolled<true, Activation::kRelu, true>(acc, row0, work, false);
      }
    }
    switch (p_.finish) {
      case Finish::kScale: return store_unrolled<false, Activation::kNone>(acc, row0, work, defer);
      case Finish::kBiasRelu: return store_unrolled<true, Activation::kRelu>(acc, row0, work, defer);
      case Finish::kBiasActivation:
        if constexpr (Traits::kIsLinear) {
          switch (p_.epilogue.act) {
            case Activation::kGelu: return store_unrolled<true, Activation::kGelu>(acc, row0, work, defer);
            case Activation::kGeluTanh: return store_unrolled<true, Activation::kGeluTanh>(acc, row0, work, defer);
            default: return store_unrolled<true, Activation::kSilu>(acc, row0, work, defer);
          }
        }
        return;
      case Finish::kAny:
        if constexpr (Traits::kStoresAny) store_any(acc, row0, work);
        return;
    }
  }

  /// From the second half on; TMA clips what lies outside of D.
  __device__ __forceinline__ void send_deferred(int half) {
    send<false>(packed_[half], half, deferred_row0_, deferred_work_);
  }

  /// Split K: the blocks of the cluster share out the halves. Each sends the sums of the others' halves to them, and
  /// adds to its own, in a fixed order, what it is sent: `sums` (CK - 1, kOwnHalves, 4, kThreads, 16 bytes), complete
  /// on `summed`.
  __device__ __forceinline__ void reduce(Accumulators& acc, uint32_t sums, uint32_t summed, int row0,
                                         const Work& work) {
    constexpr int kThreads = 256, CK = Traits::CK;
    const uint32_t rank = block_rank<Traits>();
    const auto is_own = [rank](int half) { return half % CK == rank; };
    // Of the block that sends to the s-th before it in the cluster.
    const auto place = [sums](int s, int half) {
      return sums + ((s - 1) * Traits::kOwnHalves + half / CK) * Traits::kHalfSumBytes + threadIdx.x * 16;
    };
    uint32_t ahead = load_bias(static_cast<int>(rank), work);
    ptx::cluster_wait();  // since the kernel's first lines
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      if (is_own(half)) continue;
      const uint32_t owner = half % CK, to = ptx::cluster_map(place((rank + CK - owner) % CK, half), owner);
      const uint32_t done = ptx::cluster_map(summed, owner);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float* v = half_of(acc, half) + 4 * i;
        ptx::cluster_store_async_16(to + i * kThreads * 16, v[0], v[1], v[2], v[3], done);
      }
    }
    ptx::mbarrier_wait(summed, 0);
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      if (!is_own(half)) continue;
#pragma unroll
      for (int s = 1; s < CK; ++s) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float4 x = *static_cast<const float4*>(__cvta_shared_to_generic(place(s, half) + i * kThreads * 16));
          float* v = half_of(acc, half) + 4 * i;
          v[0] += x.x, v[1] += x.y, v[2] += x.z, v[3] += x.w;
        }
      }
    }
    ptx::barrier_sync(NamedBarrier::kAdded, kThreads);  // results are staged in the place of the sums
#pragma unroll 1
    for (int half = static_cast<int>(rank); half < kHalves; half += Traits::CK) {
      const uint32_t bias = ahead;
      ahead = load_bias(half + Traits::CK, work);
      if (!is_inside(half, row0, work)) continue;
      float v[16];
      take_half<0, kHalves>(v, acc, half);
      finish(v, bias, half, row0, work);
      write(p_.epilogue.d, v, half, row0, work);
    }
  }

  /// Stream-K: leaves the accumulators in `partial`, (kHalves * 4, kReaders, 16 bytes).
  __device__ __forceinline__ void leave(const Accumulators& acc, unsigned char* partial) const {
    unsigned char* own = partial + threadIdx.x % Traits::kReaders * 16;
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float* v = half_of(acc, half) + 4 * i;
        *reinterpret_cast<float4*>(own + half * Traits::kHalfBytes + i * Traits::kReaders * 16) =
            make_float4(v[0], v[1], v[2], v[3]);
      }
    }
  }
  /// Adds a half that was left so, from shared memory.
  __device__ __forceinline__ void add(Accumulators& acc, int half, uint32_t partial) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t at = partial + (i * Traits::kReaders + threadIdx.x % Traits::kReaders) * 16;
      const float4 x = *static_cast<const float4*>(__cvta_shared_to_generic(at));
      float* v = half_of(acc, half) + 4 * i;
      v[0] += x.x, v[1] += x.y, v[2] += x.z, v[3] += x.w;
    }
  }

  /// The staging buffers may go.
  __device__ __forceinline__ void drain() {
    if (lane_ == 0) ptx::tma_store_wait_read<0>();
  }

 private:
  /// Two neighbouring elements as they lie in memory.
  template <class C>
  struct alignas(2 * sizeof(C)) Pair {
    C x[2];
  };
  /// Of a piece of 64 columns; the last one of a row may overlap its neighbour and write the same values again.
  static __device__ __forceinline__ constexpr int first_column(int piece) {
    return piece * 64 < BN - 64 ? piece * 64 : BN - 64;
  }
  static __device__ __forceinline__ int row_of(int half, int row0, const Work& work) {
    return row0 + half / 2 / (Traits::kEdged && work.is_edge ? 2 : kPiecesPerRow) * 64;
  }
  static __device__ __forceinline__ int piece_col(int half, const Work& work) {
    return work.n0 + (Traits::kEdged && work.is_edge ? half / 2 % 2 * 64 : first_column(half / 2 % kPiecesPerRow));
  }
  static __device__ __forceinline__ int col_of(int half, const Work& work) {
    return piece_col(half, work) + half % 2 * 32;
  }
  /// The first of this lane's columns of a half.
  __device__ __forceinline__ int lane_col(int half, const Work& work) const {
    return col_of(half, work) + lane_ % 4 * 2;
  }
  __device__ __forceinline__ bool is_inside(int half, int row0, const Work& work) const {
    return row_of(half, row0, work) < p_.m && piece_col(half, work) < p_.n;
  }
  template <class Acc>
  static __device__ __forceinline__ auto* half_of(Acc& acc, int half) {
    if constexpr (Traits::kEdged && is_edge<Acc>) return acc[half / 4] + half % 4 * 16;
    return acc[half / 2 / kPiecesPerRow] + first_column(half / 2 % kPiecesPerRow) / 2 + half % 2 * 16;
  }
  /// Registers cannot be indexed at run time: comparisons pick the half's accumulators out of first..last-1.
  template <int kFirst, int kLast, class Acc>
  static __device__ __forceinline__ void take_half(float (&v)[16], const Acc& acc, int half) {
    if constexpr (kFirst + 1 < kLast) {
      constexpr int kMiddle = (kFirst + kLast) / 2;
      if (half < kMiddle) {
        take_half<kFirst, kMiddle>(v, acc, half);
      } else {
        take_half<kMiddle, kLast>(v, acc, half);
      }
    } else {
#pragma unroll
      for (int i = 0; i < 16; ++i) v[i] = half_of(acc, kFirst)[i];
    }
  }

  /// The common epilogues: alpha * v, or act(alpha * v + bias) where kRelu stands for no activation too. By TMA, which
  /// clips what lies outside of D, or, `kCopies`, by the warps.
  template <bool kHasBias, Activation kAct, bool kCopies = false, class Acc>
  __device__ __forceinline__ void store_unrolled(const Acc& acc, int row0, const Work& work, bool defer) {
    const float lowest = p_.epilogue.act == Activation::kRelu ? 0.0f : -INFINITY;
    uint32_t bias = 0, ahead = 0;
    if constexpr (kHasBias) ahead = load_bias(0, work);
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      if (kHasBias && half % 2 == 0) bias = ahead, ahead = load_bias(half + 2, work);
      if (kCopies && !is_inside(half, row0, work)) continue;
      float v[16];
#pragma unroll
      for (int i = 0; i < 16; ++i) v[i] = half_of(acc, half)[i] * p_.epilogue.alpha;
      if constexpr (kHasBias) add_bias(v, bias, half);
#pragma unroll
      for (int i = 0; i < 16; ++i) {
        if constexpr (kAct == Activation::kRelu) {
          v[i] = ptx::max_or_nan(v[i], lowest);
        } else if constexpr (kAct != Activation::kNone) {
          v[i] = tile::fast_activate<kAct>(v[i]);
        }
      }
      uint32_t (&packed)[8] = packed_[Traits::kDefers ? half : 0];
      pack(packed, v);
      if (Traits::kDefers && defer && half > 0) continue;
      send<kCopies>(packed, half, row0, work);
    }
    if constexpr (Traits::kDefers) deferred_row0_ = row0, deferred_work_ = work;
  }

  /// Every epilogue, not unrolled: what happens to a half is long.
  template <class Acc>
  __device__ __forceinline__ void store_any(const Acc& acc, int row0, const Work& work) {
    uint32_t bias = 0, ahead = load_bias(0, work);
#pragma unroll 1
    for (int half = 0; half < kHalves; ++half) {
      if (half % 2 == 0) bias = ahead, ahead = load_bias(half + 2, work);
      if (!is_inside(half, row0, work)) continue;
      float v[16];
      take_half<0, kHalves>(v, acc, half);
      finish(v, bias, half, row0, work);
      if (p_.epilogue.out_f32) {
        write(p_.epilogue.d, v, half, row0, work);
      } else {
        pack(packed_[0], v);
        if (p_.store_tma) {
          send<false>(packed_[0], half, row0, work);
        } else {
          send<true>(packed_[0], half, row0, work);
        }
      }
    }
  }

  /// act(alpha * v + beta * C + bias); the argument of act goes to pre_activation, if asked for.
  __device__ __forceinline__ void finish(float (&v)[16], uint32_t bias, int half, int row0, const Work& work) {
    const tile::EpilogueParams& e = p_.epilogue;
#pragma unroll
    for (int i = 0; i < 16; ++i) v[i] *= e.alpha;
    if (e.c != nullptr) {
      if (e.c_f32) {
        add_c<float>(v, half, row0, work);
      } else {
        add_c<T>(v, half, row0, work);
      }
    }
    if (p_.bias_pairs) {
      add_bias(v, bias, half);
    } else if (e.bias != nullptr) {
      add_unaligned_bias(v, half, work);
    }
    if (e.pre_activation != nullptr) write(e.pre_activation, v, half, row0, work);
    switch (e.act) {  // one loop per activation: the choice is made once, not per element
      case Activation::kRelu: return activate<Activation::kRelu>(v);
      case Activation::kGelu: return activate<Activation::kGelu>(v);
      case Activation::kGeluTanh: return activate<Activation::kGeluTanh>(v);
      case Activation::kSilu: return activate<Activation::kSilu>(v);
      default: return;
    }
  }
  template <Activation kAct>
  static __device__ __forceinline__ void activate(float (&v)[16]) {
#pragma unroll
    for (int i = 0; i < 16; ++i) v[i] = tile::fast_activate<kAct>(v[i]);
  }

  /// Two elements of a row from column `col` on. Columns beyond the last one give some element before it: what becomes
  /// of it is not stored, and so no load needs a branch.
  template <class C>
  __device__ __forceinline__ Pair<C> load_pair(const C* row, int64_t stride, int col) const {
    const int last = p_.n - 1;
    if (p_.c_pairs) return *reinterpret_cast<const Pair<C>*>(row + min(col, last - 1));
    return {{row[min(col, last) * stride], row[min(col + 1, last) * stride]}};
  }
  /// The bias of a piece's columns, spread over the warp: two neighbours a lane. 0 without pairs.
  __device__ __forceinline__ uint32_t load_bias(int half, const Work& work) const {
    if (!p_.bias_pairs) return 0;
    const int col = min(piece_col(half, work) + 2 * lane_, p_.n - 2);
    return *reinterpret_cast<const uint32_t*>(static_cast<const T*>(p_.epilogue.bias) + col);
  }
  static __device__ __forceinline__ void add_bias(float (&v)[16], uint32_t bias, int half) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const uint32_t bits = __shfl_sync(~0u, bias, half % 2 * 16 + 4 * j + threadIdx.x % 4);
      Pair<T> pair;
      memcpy(&pair, &bits, sizeof(pair));
#pragma unroll
      for (int i = 0; i < 4; ++i) v[4 * j + i] += to_float(pair.x[i % 2]);
    }
  }
  __device__ __forceinline__ void add_unaligned_bias(float (&v)[16], int half, const Work& work) const {
    const T* bias = static_cast<const T*>(p_.epilogue.bias);
#pragma unroll
    for (int i = 0; i < 16; ++i) v[i] += to_float(bias[min(lane_col(half, work) + i / 4 * 8 + i % 2, p_.n - 1)]);
  }
  template <class C>
  __device__ __forceinline__ void add_c(float (&v)[16], int half, int row0, const Work& work) {
    const tile::EpilogueParams& e = p_.epilogue;
    const C* c = static_cast<const C*>(e.c) + work.outer * e.c_batch[0] + work.inner * e.c_batch[1];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = min(row_of(half, row0, work) + lane_ / 4 + 8 * h, p_.m - 1);
      Pair<C> pairs[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        pairs[j] = load_pair(c + row * e.c_row, e.c_col, lane_col(half, work) + 8 * j);
      }
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        float& x = v[i / 2 * 4 + 2 * h + i % 2];
        x = fmaf(e.beta, to_float(pairs[i / 2].x[i % 2]), x);
      }
      __syncwarp();  // the second row's addresses need the first one's registers
    }
  }
  static __device__ __forceinline__ uint32_t bits_of(const Pair<T>& pair) {
    uint32_t bits;
    memcpy(&bits, &pair, sizeof(bits));
    return bits;
  }
  static __device__ __forceinline__ void pack(uint32_t (&packed)[8], const float (&v)[16]) {
#pragma unroll
    for (int i = 0; i < 8; ++i) packed[i] = bits_of({from_float<T>(v[2 * i]), from_float<T>(v[2 * i + 1])});
  }

  /// Stages a half; with the second one TMA writes both, or, `kCopies`, the warp does.
  template <bool kCopies>
  __device__ __forceinline__ void send(const uint32_t (&packed)[8], int half, int row0, const Work& work) {
    if constexpr (Traits::kSwapped) return send_transposed(packed, half, row0, work);
    if (half % 2 == 0 && reuses_) {
      if (lane_ == 0) ptx::tma_store_wait_read<Traits::kStagingBuffers - 1>();
      __syncwarp();
    }
    stage(packed, half);
    if (half % 2 == 0) return;
    const int row = row_of(half, row0, work), col = piece_col(half, work);
    if constexpr (kCopies) {
      __syncwarp();
      copy_out<2>(static_cast<T*>(p_.epilogue.d) + offset_of(row, col, work), half - 1, row, col);
    } else {
      ptx::fence_proxy_async();
      __syncwarp();
      if (lane_ == 0) {
        ptx::tma_store(&p_.d, buffer(), {col, row, work.inner, work.outer});
        ptx::tma_store_commit();
      }
    }
    next_buffer();
  }
  /// D^T: a piece is 64 rows of D, in each of which a warp has 32 bytes. The warpgroup's four warps write it together,
  /// whole lines.
  __device__ __forceinline__ void send_transposed(const uint32_t (&packed)[8], int half, int row0, const Work& work) {
    const int group = static_cast<int>(threadIdx.x) / 128, warp = static_cast<int>(threadIdx.x) / 32 % 4;
    const uint32_t piece = buffer() - warp * Traits::kStagingWarpBytes;
    if (half % 2 == 0 && reuses_) {
      if (warp == 0 && lane_ == 0) ptx::tma_store_wait_read<Traits::kStagingBuffers - 1>();
      ptx::barrier_sync(NamedBarrier::kPiece + group, 128);
    }
    const int line = lane_ / 16 * 8 + lane_ % 8, chunk = (warp * 2 + lane_ / 8 % 2) ^ lane_ % 8;
    const uint32_t first = ptx::opaque(piece + line * kLine + chunk * 16) + half % 2 * 32 * kLine;
    ptx::stmatrix_x4_trans(first, packed[0], packed[1], packed[2], packed[3]);
    ptx::stmatrix_x4_trans(first + 16 * kLine, packed[4], packed[5], packed[6], packed[7]);
    if (half % 2 == 0) return;
    ptx::fence_proxy_async();
    ptx::barrier_sync(NamedBarrier::kPiece + group, 128);
    if (warp == 0 && lane_ == 0) {
      ptx::tma_store(&p_.d, piece, {row_of(half, row0, work), piece_col(half, work), work.inner, work.outer});
      ptx::tma_store_commit();
    }
    next_buffer();
  }
  __device__ __forceinline__ void next_buffer() { sent_ = reuses_ ? (sent_ + 1) % Traits::kStagingBuffers : sent_ + 1; }
  __device__ __forceinline__ uint32_t buffer() const { return staging_ + sent_ * Traits::kStagingBytes; }
  /// Where 16 bytes of a half lie in the buffer's 16 swizzled lines.
  __device__ __forceinline__ uint32_t chunk_at(int half, int row, int chunk) const {
    return buffer() + row * kLine + ((half % 2 * 4 + chunk) ^ (row % 8)) * 16;
  }
  __device__ __forceinline__ void stage(const uint32_t (&packed)[8], int half) {
    // The swizzle flips bits, and so do steps by even chunks.
    const uint32_t first = ptx::opaque(chunk_at(0, lane_ % 16, lane_ / 16));
#pragma unroll
    for (int j = 0; j < 4; j += 2) {
      const uint32_t* x = packed + j * 2;
      ptx::stmatrix_x4(first ^ (half % 2 * 4 + j) * 16, x[0], x[1], x[2], x[3]);
    }
  }

  /// Without TMA: a half to its place in a matrix with D's type and strides, any alignment.
  __device__ __forceinline__ void write(void* matrix, const float (&v)[16], int half, int row0, const Work& work) {
    const int row = row_of(half, row0, work), col = col_of(half, work);
    const int64_t at = offset_of(row, col, work);
    if (p_.epilogue.out_f32) {
      write_f32(static_cast<float*>(matrix) + at, v, row, col);
    } else {
      if (p_.store_tma) {  // earlier halves may still be leaving
        if (lane_ == 0) ptx::tma_store_wait_read<0>();
        __syncwarp();
      }
      pack(packed_[0], v);
      stage(packed_[0], half);
      __syncwarp();
      copy_out<1>(static_cast<T*>(matrix) + at, half, row, col);
      __syncwarp();
    }
  }
  __device__ __forceinline__ int64_t offset_of(int row, int col, const Work& work) const {
    const tile::EpilogueParams& e = p_.epilogue;
    return work.outer * e.d_batch[0] + work.inner * e.d_batch[1] + row * e.ldd + col;
  }
  __device__ __forceinline__ void write_f32(float* dst, const float (&v)[16], int row, int col) {
    const tile::EpilogueParams& e = p_.epilogue;
    const int left = p_.n - col - lane_ % 4 * 2;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int r = lane_ / 4 + 8 * h;
      if (row + r >= p_.m) continue;
      float* out = dst + r * e.ldd + lane_ % 4 * 2;
      const bool aligned = reinterpret_cast<uint64_t>(out) % 8 == 0;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float* x = v + 4 * j + 2 * h;
        if (aligned && left - 8 * j > 1) {
          *reinterpret_cast<float2*>(out + 8 * j) = make_float2(x[0], x[1]);
        } else {
          if (left - 8 * j > 0) out[8 * j] = x[0];
          if (left - 8 * j > 1) out[8 * j + 1] = x[1];
        }
      }
    }
  }
  /// Copies staged halves, from `first` on, out to rows that may start anywhere: 16-byte chunks on the grid of their
  /// addresses, each shifted out of two staged ones, then what is before and behind them. One warp, alone on its
  /// scheduler, runs this: loads come two at a time where registers allow, and stores are predicated, not branched
  /// around.
  template <int HALVES>
  __device__ __forceinline__ void copy_out(T* dst, int first, int row, int col) {
    constexpr int kChunks = 4 * HALVES, kRows = 32 / kChunks;  // of a row; at a time
    constexpr int kBatch = Traits::WM / 64 * BN / 2 > 160 ? 1 : 2, kUnroll = kBatch == 1 ? 1 : 16;
    const int64_t ldd = p_.epilogue.ldd;
    const int left = min(p_.n - col, 8 * kChunks), rows = min(p_.m - row, 16);
    const auto before_grid = [](const T* line) { return -tile::off_grid(line) & 7; };
    const auto load_16 = [](uint32_t at) { return *static_cast<const uint4*>(__cvta_shared_to_generic(at)); };
    const auto next_to = [](int chunk) { return min(chunk + 1, kChunks - 1); };
    // Computed twice from what is in a register anyway.
    const auto lane = [this] { return static_cast<int>(ptx::opaque(static_cast<uint32_t>(lane_))); };
    const int of_chunk = lane(), r0 = of_chunk / kChunks, c = of_chunk % kChunks;
    const uint32_t low_at = chunk_at(first, r0, c), high_at = chunk_at(first, r0, next_to(c));
#pragma unroll kUnroll
    for (int i = 0; i < 16; i += kBatch * kRows) {
      uint4 low[kBatch], high[kBatch];
#pragma unroll
      for (int j = 0; j < kBatch; ++j) {
        const int r = i + j * kRows;  // the swizzle of row r0 + r
        low[j] = load_16((low_at ^ r % 8 * 16) + r * kLine);
        high[j] = load_16((high_at ^ r % 8 * 16) + r * kLine);
      }
#pragma unroll
      for (int j = 0; j < kBatch; ++j) {
        const int r = i + j * kRows + r0;
        T* line = dst + r * ldd;
        const int grid = before_grid(line), at = grid + 8 * c;
        const uint4 x = tile::shifted(low[j], high[j], grid);
        if (r < rows && at + 8 <= left) *reinterpret_cast<uint4*>(line + at) = x;
      }
    }
    const int of_end = lane(), r = of_end % 16;
    T* const line = dst + r * ldd;
    if (left < 8) {
      const auto element = [&](int i) {
        return *static_cast<const T*>(__cvta_shared_to_generic(chunk_at(first, r, 0) + 2 * i));
      };
      for (int i = lane_ / 16; i < left; i += 2) {
        if (r < rows) line[i] = element(i);
      }
      return;
    }
    const int grid = before_grid(line);
    const bool is_head = of_end < 16;
    const int at = is_head ? 0 : grid + ((left - grid) & ~7), count = r < rows ? (is_head ? grid : left - at) : 0;
    const int chunk = min(at / 8, kChunks - 1);
    store_end(line + at,
              tile::shifted(load_16(chunk_at(first, r, chunk)), load_16(chunk_at(first, r, next_to(chunk))), at % 8),
              count, is_head);
  }
  /// The first `count` elements, fewer than eight: 1, 2 and 4 of them if they end on the grid, 4, 2 and 1 if they begin
  /// there.
  static __device__ __forceinline__ void store_end(T* to, const uint4& x, int count, bool ends) {
    const int at4 = ends ? count & 3 : 0, at2 = ends ? count & 1 : count & 4, at1 = ends ? 0 : count & 6;
    const uint32_t w0 = at4 & 2 ? x.y : x.x, w1 = at4 & 2 ? x.z : x.y, w2 = at4 & 2 ? x.w : x.z;
    const uint32_t two = __funnelshift_r(at2 & 4 ? x.z : x.x, x.y, at2 % 2 * 16);
    const uint32_t one = at1 & 4 ? (at1 & 2 ? x.w : x.z) : (at1 & 2 ? x.y : x.x);
    if (count & 4) {
      *reinterpret_cast<uint2*>(to + at4) =
          make_uint2(__funnelshift_r(w0, w1, at4 % 2 * 16), __funnelshift_r(w1, w2, at4 % 2 * 16));
    }
    if (count & 2) *reinterpret_cast<uint32_t*>(to + at2) = two;
    if (count & 1) *reinterpret_cast<uint16_t*>(to + at1) = static_cast<uint16_t>(one);
  }

  const Params& p_;
  uint32_t staging_;  // (kStagingBuffers, 16, 128 bytes)
  int lane_;
  bool reuses_ = true;                                 // the staging buffers, in turn
  uint32_t sent_ = 0;                                  // which buffer is next
  uint32_t packed_[Traits::kDefers ? kHalves : 1][8];  // results of a tile, rounded, as stmatrix takes them
  int deferred_row0_;
  Work deferred_work_;
};

template <class Traits>
__global__ void __launch_bounds__(Traits::kThreads, 1) kernel(const __grid_constant__ ParamsOf<Traits> p) {
  using T = typename Traits::T;
  constexpr int BM = Traits::BM, BN = Traits::BN, BK = Traits::BK, WM = Traits::WM, MI = WM / 64;
  constexpr int STAGES = Traits::STAGES;
  using SmemA = SmemOperand<BM, BK, Traits::kMajorA, Traits::CN>;
  using SmemB = SmemOperand<BN, BK, Traits::kMajorB, Traits::CM>;
  constexpr bool kBFollowsC = SmemB::kIsKMajor || BN % 64 == 0;  // its tiles start at the columns of C's
  constexpr int kConsumerWarps = 8;
  constexpr int kStageReaders = Traits::kPingpong ? 4 : 8;  // warps of a block that read one stage

  // STAGES x { A, B }, staging (split K: sums, then staging), barriers: full, empty, and of the sums
  extern __shared__ __align__(1024) unsigned char smem[];
  const uint32_t stages = ptx::smem_addr(smem);
  const uint32_t staging = stages + STAGES * Traits::kStageBytes;
  const uint32_t sums = staging + Traits::kStagingBuffers * Traits::kStagingBytes;
  const uint32_t full = sums + Traits::kSumBytes;
  const uint32_t empty = full + STAGES * 8, last = empty + STAGES * 8;
  const uint32_t summed = last;  // split K; a stream-K walk keeps its share there
  const int lane = threadIdx.x % 32;
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0);
  const Walk<Traits> walk(p, last);
  // This block's part of step `kt` of both operands: visit(SmemOperand, bytes into the stage, what its load takes...).
  const auto each_operand = [&](const Work& work, int kt, const auto& visit) {
    const uint32_t rank = block_rank<Traits>();
    const int n0 = kBFollowsC ? work.n0 : work.n0 / BN * p.pitch_b;
    visit(SmemA(), 0, p.a, work.m0, kt * BK, work.inner & p.a_batch[1], work.outer & p.a_batch[0],
          rank / Traits::CM % Traits::CN);
    if constexpr (Traits::kEdged) {
      if (work.is_edge) {
        visit(SmemA(), Traits::kStageBytesA, p.a, work.m0 + BM, kt * BK, 0, 0, 0);
        return visit(SmemEdge<Traits>(), 2 * Traits::kStageBytesA, p.b_edge, n0, kt * BK, 0, 0, rank);
      }
    }
    visit(SmemB(), Traits::kStageBytesA, p.b, n0, kt * BK, work.inner & p.b_batch[1], work.outer & p.b_batch[0],
          rank % Traits::CM);
  };

  const auto loaded_bytes = [](const Work& work) {
    if constexpr (Traits::kEdged) {
      if (work.is_edge) return 2 * SmemA::kLoadedBytes + SmemEdge<Traits>::kLoadedBytes;
    }
    return SmemA::kLoadedBytes + SmemB::kLoadedBytes;
  };

  ptx::grid_launch_dependents();
  if (threadIdx.x == kConsumerWarps * 32) {
    ptx::tma_prefetch(&p.a);
    ptx::tma_prefetch(&p.b);
  }
  if (threadIdx.x == 0) {
    for (int s = 0; s < STAGES; ++s) {
      ptx::mbarrier_init(full + s * 8, 1);
      ptx::mbarrier_init(empty + s * 8, kStageReaders * Traits::kSharers);
    }
    if constexpr (Traits::CK > 1) {
      ptx::mbarrier_init(summed, 1);
      ptx::mbarrier_arrive_expect_tx(summed, Traits::kSumBytes);
    }
    ptx::fence_mbarrier_init();
  }
  if constexpr (Traits::kCluster > 1) ptx::cluster_arrive_relaxed();
  // What a kernel before may still write cannot be read yet, but brought to L2.
  if (threadIdx.x == kConsumerWarps * 32) {
    walk.start();
    const Work work = walk.work(0);
    each_operand(work, work.k_first, [](auto operand, int, const auto&... at) { operand.prefetch(at...); });
  }
  // Nobody has waited for that kernel yet: the first load does, and whoever reads C or the bias or writes D.
  if constexpr (Traits::kSharers > 1) {
    if constexpr (Traits::kStreamK) __syncthreads();  // a relaxed arrival does not show what walk.start() wrote
    ptx::cluster_wait();
  } else {
    __syncthreads();  // split K: the others' barriers are only needed for the sums
  }

  Ring<STAGES> ring;
  if (warp >= kConsumerWarps) {
    ptx::release_registers<24>();
    if (warp == kConsumerWarps && lane == 0) {  // not ptx::elect_one(): slower here (NOTES.md)
      for (uint32_t turn = 0; walk.has(turn); ++turn) {
        const Work work = walk.work(turn);
        for (int kt = work.k_first; kt < work.k_last; ++kt, ring.advance()) {
          const uint32_t bar = full + ring.stage * 8, at = stages + ring.stage * Traits::kStageBytes;
          ptx::mbarrier_wait(empty + ring.stage * 8, ring.parity ^ 1);
          ptx::mbarrier_arrive_expect_tx(bar, loaded_bytes(work));
          if (turn == 0 && kt == work.k_first) ptx::grid_dependency_wait();
          each_operand(work, kt,
                       [&](auto operand, int offset, const auto&... from) { operand.load(at + offset, bar, from...); });
        }
        if constexpr (Traits::kStreamK) {
          for (uint32_t h = 1; h <= work.helpers; ++h) {
            const uint32_t block = blockIdx.x - h * Traits::kCluster;  // of the same rank
            while (ptx::flag_load(p.flags + block) != p.tag) {
            }
            p.flags[block] = 0;               // nobody else reads it; the next replay of a graph finds it so
            ptx::fence_proxy_async_global();  // written by ordinary stores, read by bulk copies
            const unsigned char* from = p.partials + size_t{block} * Traits::kPartialBytes;
            int left = Traits::kPartialBytes;
            for (int i = 0; i < Traits::kPartialStages; ++i, ring.advance()) {
              const uint32_t bar = full + ring.stage * 8;
              const int bytes = min(left, Traits::kStageHalves * Traits::kHalfBytes);
              ptx::mbarrier_wait(empty + ring.stage * 8, ring.parity ^ 1);
              ptx::mbarrier_arrive_expect_tx(bar, bytes);
              ptx::bulk_load(stages + ring.stage * Traits::kStageBytes, from, bytes, bar);
              from += bytes, left -= bytes;
            }
          }
        }
      }
      // A block must outlive its peers' arrivals: when every stage has been given back, there is none on its way. What
      // the block sends to its peers, they have waited for.
      if constexpr (Traits::kSharers > 1) {
        for (int s = 0; s < STAGES; ++s, ring.advance()) ptx::mbarrier_wait(empty + ring.stage * 8, ring.parity ^ 1);
      }
    }
    if constexpr (Traits::kStreamK) {
      // What the consumers have left is announced by a warp that can wait for it to arrive: theirs come before its flag
      // by the barrier, and, since a release covers all that its thread knows of, before whatever follows the flag.
      if (warp == kConsumerWarps + 1 && walk.partials() > 0) {
        ptx::barrier_sync(NamedBarrier::kLeft, Traits::kReaders + 32);
        if (lane == 0) ptx::flag_store(p.flags + blockIdx.x, p.tag);
      }
    }
  } else {
    ptx::claim_registers<240>();
    if (threadIdx.x == 0 && p.store_tma) ptx::tma_prefetch(&p.d);
    ptx::grid_dependency_wait();
    const int group = warp / 4;
    const int row_in_tile = Traits::kPingpong ? 0 : group * WM;
    Epilogue<Traits> epilogue(p, staging + warp * Traits::kStagingWarpBytes);
    const auto release = [&](uint32_t stage) {
      if constexpr (Traits::kSharers == 1) {
        if (lane == 0) ptx::mbarrier_arrive(empty + stage * 8);
      } else {
        if (lane < Traits::kSharers) ptx::mbarrier_arrive_cluster(empty + stage * 8, lane);
      }
    };
    float acc[MI][BN / 2];
    uint32_t previous = 0;  // stage
    const auto multiply = [&](auto& acc, bool is_first) {
      constexpr bool kIsEdge = Traits::kEdged && is_edge<std::remove_reference_t<decltype(acc)> >;
      constexpr int kParts = kIsEdge ? 2 : MI, kColumns = kIsEdge ? Traits::kEdge : BN;
      const uint32_t at = stages + ring.stage * Traits::kStageBytes;
      const uint64_t a = SmemA::descriptor(at, (kIsEdge ? 2 : 1) * row_in_tile);
      const uint64_t b = SmemB::descriptor(at + (kIsEdge ? 2 : 1) * Traits::kStageBytesA, 0);
      ptx::mbarrier_wait(full + ring.stage * 8, ring.parity);
      ptx::wgmma_fence();
#pragma unroll
      for (int step = 0; step < BK / 16; ++step) {
#pragma unroll
        for (int i = 0; i < kParts; ++i) {
          ptx::Wgmma<T>::template m64k16<kColumns, SmemA::kTranspose, SmemB::kTranspose>(
              acc[i], ptx::wgmma_advance(a, i * SmemA::kChunkBytes + step * SmemA::kStepBytes),
              ptx::wgmma_advance(b, step * SmemB::kStepBytes), !is_first || step > 0);
        }
      }
      ptx::wgmma_commit();
      ptx::wgmma_wait<1>();
      if (!is_first) release(previous);
      previous = ring.stage;
      ring.advance();
    };
    const auto main_loop = [&](auto& acc, const Work& work, uint32_t turn) {
      int kt = work.k_first;
      if constexpr (Traits::kDefers) {
        if (p.defers && turn > walk.partials()) {
#pragma unroll
          for (int half = 1; half < Traits::kHalves; ++half, ++kt) {
            multiply(acc, half == 1);
            epilogue.send_deferred(half);
          }
        }
      }
      for (; kt < work.k_last; ++kt) multiply(acc, kt == work.k_first);
    };
    // A block with a single tile runs its epilogue once, while its instructions come from L2. The warpgroup that has no
    // tile runs it before, on rows beyond D, of which TMA stores nothing. Tiles of 64 rows are sooner through without.
    constexpr uint32_t kRehearsal = ~0u;  // the turn before the first
    constexpr int kBeyondD = 1 << 30;     // no row of D
    constexpr bool kRehearses = Traits::kPingpong && !Traits::kStreamK && BM > 64;
    uint32_t turn = kRehearses && group == 1 && !walk.has(1) ? kRehearsal : 0;
    for (; (kRehearses && turn == kRehearsal) || walk.has(turn); ++turn) {
      const bool rehearses = kRehearses && turn == kRehearsal;
      if constexpr (Traits::kPingpong) {
        if (turn % 2 != group) {
          if constexpr (Traits::kStreamK) {
            const Work work = walk.work(turn);
            ring.skip(work.k_last - work.k_first + work.helpers * Traits::kPartialStages);
          } else {
            ring.skip(p.k_tiles);
          }
          continue;
        }
        // The main loops of the two warpgroups take turns.
        if (turn > 0 && !rehearses) ptx::barrier_sync(NamedBarrier::kTurn + group, 256);
      }
      Work work = walk.work(rehearses ? 0 : turn);
      if (rehearses) work.m0 = kBeyondD, work.k_last = work.k_first;
      if constexpr (Traits::kEdged) {
        if (work.is_edge) break;
      }
      main_loop(acc, work, turn);
      // A parity tells a stage's use from the one before, not from the last but one: the other warpgroup must not go on
      // until this one has waited for all that comes before in the ring, partial sums included.
      const auto hand_over = [&] {
        if constexpr (Traits::kPingpong) {
          if (walk.has(turn + 1)) ptx::barrier_arrive(NamedBarrier::kTurn + 1 - group, 256);
        }
      };
      if (work.helpers == 0 && !rehearses) hand_over();
      ptx::wgmma_wait<0>();
      if (!rehearses) release(previous);
#pragma unroll
      for (int i = 0; i < MI; ++i) ptx::wgmma_pin(acc[i]);

      if constexpr (Traits::kStreamK) {
        if (turn < walk.partials()) {
          epilogue.leave(acc, p.partials + size_t{blockIdx.x} * Traits::kPartialBytes);
          ptx::barrier_arrive(NamedBarrier::kLeft, Traits::kReaders + 32);
          continue;
        }
#pragma unroll 1
        for (uint32_t h = 0; h < work.helpers; ++h) {
#pragma unroll
          for (int half = 0; half < Traits::kHalves; ++half) {
            constexpr int kInStage = Traits::kStageHalves;
            if (half % kInStage == 0) ptx::mbarrier_wait(full + ring.stage * 8, ring.parity);
            epilogue.add(acc, half, stages + ring.stage * Traits::kStageBytes + half % kInStage * Traits::kHalfBytes);
            if (half % kInStage == kInStage - 1 || half == Traits::kHalves - 1) {
              // An arrival in the cluster overtakes ordinary loads before it, and what TMA brings next is not ordered
              // with them.
              ptx::fence_proxy_async();
              __syncwarp();
              release(ring.stage);
              ring.advance();
            }
          }
        }
        if (work.helpers > 0) hand_over();
      }
      const int row0 = work.m0 + row_in_tile + warp % 4 * 16;
      if constexpr (Traits::kPingpong && !Traits::kStreamK) {  // which has no registers for it
        // Every stage has been refilled for this tile, and so been given back by the other warpgroup.
        if (p.k_tiles >= STAGES && !rehearses && !walk.has(turn + 1)) {
          static_assert(Traits::kHalves / 2 * Traits::kStagingBytes <= STAGES * Traits::kStageBytes);
          ptx::barrier_sync(NamedBarrier::kMultiplied + group, 128);  // the other warps have read it, too
          epilogue.stage_in_ring(stages + warp * Traits::kStagingWarpBytes);
        }
      }
      if constexpr (Traits::CK > 1) {
        epilogue.reduce(acc, sums, summed, row0, work);
      } else {
        epilogue.store(acc, row0, work, p.defers && walk.has(turn + 1));
      }
    }
    if constexpr (Traits::kEdged) {
      if (walk.has(turn)) {
        const Work work = walk.work(turn);
        EdgeAccumulators edge;
        main_loop(edge, work, turn);
        ptx::wgmma_wait<0>();
        release(previous);
#pragma unroll
        for (int i = 0; i < 2; ++i) ptx::wgmma_pin(edge[i]);
        epilogue.store(edge, work.m0 + 2 * row_in_tile + warp % 4 * 16, work, false);
      }
    }
    epilogue.drain();
  }
}

}  // namespace hgemm::sm90_wgmma
