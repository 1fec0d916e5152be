// The epilogue: from a consumer warpgroup's accumulators to D.
#pragma once

#include <cuda.h>

#include <cstring>
#include <type_traits>

#include "core/convert.cuh"
#include "core/problem.h"
#include "kernels/sm90_wgmma/accumulators.cuh"
#include "kernels/sm90_wgmma/config.h"
#include "kernels/sm90_wgmma/named_barrier.h"
#include "kernels/sm90_wgmma/shared_memory.cuh"
#include "kernels/sm90_wgmma/split_k.cuh"
#include "kernels/sm90_wgmma/tile_scheduler.cuh"
#include "kernels/sm90_wgmma/traits.cuh"
#include "kernels/sm90_wgmma/unaligned_rows.cuh"
#include "ptx/approx.cuh"
#include "ptx/bulk.cuh"
#include "ptx/cluster.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/shared.cuh"
#include "ptx/stmatrix.cuh"
#include "ptx/tma.cuh"
#include "tile/chunk.cuh"
#include "tile/epilogue.cuh"
#include "tile/fast_activation.cuh"
#include "tile/with_constant.cuh"

namespace hgemm::sm90_wgmma {

/// Stores the result of a consumer warpgroup, one 32-column subtile (`half`) at a time; each warp has 16 of its rows.
/// 16-bit results pass through swizzled staging in shared memory. There two subtiles make an epilogue tile of 64
/// columns (`piece`), and TMA writes each warp's rows of it. If D is not aligned for TMA, the warp copies its rows out
/// itself. float32 results are stored from registers. Warps work independently, except in SwapAB kernels: there a line
/// of D begins in one warp and ends in another, so the four warps share an epilogue tile.
///
/// In Merged kernels the rows of D are not at one stride, so warps copy them out even where they are aligned.
///
/// A cooperative kernel has no other tile whose main loop could hide the epilogue, but it has registers to spare. So
/// the epilogue only rounds the results at once, and the subtiles go to memory one by one between the first k-tiles of
/// the next tile (deferred stores).
template <class Traits, bool = Traits::kIsInt8>
class Epilogue {
  using T = typename Traits::T;
  using Halves = sm90_wgmma::Halves<Traits>;
  /// Maps the subtiles of a Gated kernel's results to D.
  struct HalfAsWide {
    static constexpr int BN = Traits::BN / 2;
    static constexpr bool kEdged = false;
  };
  using Stored = sm90_wgmma::Halves<std::conditional_t<Traits::kGated && !Traits::kSwapped, HalfAsWide, Traits>>;
  static constexpr int kLine = 128;  // bytes of a row of the staging buffer
  static constexpr int kHalves = Traits::kHalves;
  // C is brought into L2 during the main loop, and loaded one subtile ahead, where the accumulators leave registers for
  // that.
  static constexpr bool kLoadsAhead = Traits::kStoresAny && !Traits::kDefers && !Traits::kGrouped &&
                                      !Traits::kGroupsK && Traits::WM / 64 * Traits::BN / 2 <= 128;

 public:
  using Accumulators = sm90_wgmma::Accumulators<Traits>;

  /// `staging`: this warp's buffers, kStagingBytes apart.
  __device__ __forceinline__ Epilogue(const Params& p, uint32_t staging)
      : p_(p), staging_(staging), lane_(threadIdx.x % 32) {}
  /// Called before the block's last tile: stages its results in the ring, which receives no more loads. The ring has a
  /// buffer for each of the epilogue tiles, so none is used twice.
  __device__ __forceinline__ void stage_in_ring(uint32_t ring) {
    staging_ = ring;
    sent_ = 0;
    reuses_ = false;
  }

  /// Called before the main loop of a tile: brings this warp's rows of C into L2.
  __device__ __forceinline__ void prefetch_c(int row0, const Work& work) const {
    if constexpr (kLoadsAhead) {
      if (!p_.c_pairs || lane_ >= 16) return;
      const int bytes = min(p_.n - work.n0, Traits::BN) / 8 * 16;
#pragma unroll
      for (int i = 0; i < Traits::WM; i += 64) {
        const int row = row0 + i + lane_;
        if (row < p_.m && bytes > 0) ptx::bulk_prefetch(matrix_of_c<T>(work) + row_in_c(row, work) + work.n0, bytes);
      }
    }
  }

  /// Calls store() or, in split-K kernels, reduce().
  __device__ __forceinline__ void finish_tile(Accumulators& acc, const SharedMemory<Traits>& smem, int row0,
                                              const Work& work, bool defer) {
    if constexpr (Traits::CK > 1) {
      reduce(acc, smem.sums(), smem.summed(), row0, work);
    } else {
      store(acc, row0, work, defer);
    }
  }

  /// Applies the epilogue to the warpgroup's accumulators and stores the results. `row0` is this warp's first row among
  /// the tile's first 64. With `defer` all subtiles but the first may be left to send_deferred().
  template <class Acc>
  __device__ __forceinline__ void store(const Acc& acc, int row0, const Work& work, bool defer) {
    if constexpr (Traits::kGated) {
      return Traits::kSwapped ? store_gated_columns(acc, row0, work) : store_gated(acc, row0, work);
    }
    if constexpr (Traits::kGrouped) {
      if (p_.finish == Finish::kAny) return store_finished(acc, row0, work);
    }
    if constexpr (Traits::kSwapped || Traits::kGrouped || Traits::kGroupsK) {
      return store_unrolled<false, Activation::kNone>(acc, row0, work, defer);
    }
    if constexpr (Traits::kCarries && Traits::kStoresAny) {  // for float32 results, and all others but plain ones
      if (p_.store_tma && p_.finish == Finish::kScale) {
        return store_unrolled<false, Activation::kNone>(acc, row0, work, defer);
      }
      return store_any(acc, row0, work);
    }
    if constexpr (Traits::kCopies) {
      // The choice between TMA and copies is made once a tile. Made for each epilogue tile, it would jump over the code
      // of the other way every time.
      if (!p_.store_tma && p_.finish != Finish::kAny) return store_copied(acc, row0, work);
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

  /// Stages deferred subtile `half`, 1 or more, and stores the epilogue tile that it completes. TMA clips the part
  /// outside of D.
  __device__ __forceinline__ void send_deferred(int half) {
    send<false>(packed_[half], half, deferred_row0_, deferred_work_);
  }

  /// Grouped: called before send_deferred(), with the arguments of the store() that deferred.
  /// NOTE: where they are kept from that call on, as in the other kernels, ptxas 13.0 takes the columns of the next
  /// tile for those of this one: the scheduler's table is read by all lanes, so ptxas keeps the columns in uniform
  /// registers.
  __device__ __forceinline__ void recall(int row0, const Work& work) {
    deferred_row0_ = row0;
    deferred_work_ = work;
  }

  /// Split-K: adds up the cluster's sums (exchange_halves), then finishes and stores this block's subtiles.
  __device__ __forceinline__ void reduce(Accumulators& acc, uint32_t sums, uint32_t summed, int row0,
                                         const Work& work) {
    const uint32_t rank = block_rank<Traits>();
    uint32_t ahead = load_bias(static_cast<int>(rank), work), c_ahead[8];
    load_c(c_ahead, static_cast<int>(rank), row0, work);
    exchange_halves<Traits>(acc, sums, summed, rank);
    ptx::barrier_sync(NamedBarrier::kSumsRead,
                      Traits::kConsumerThreads);  // results are staged where the sums are
#pragma unroll 1
    for (int half = static_cast<int>(rank); half < kHalves; half += Traits::CK) {
      const uint32_t bias = ahead;
      ahead = load_bias(half + Traits::CK, work);
      uint32_t c[8];
      take_c(c, c_ahead, half + Traits::CK, row0, work);
      if (!is_inside(half, row0, work)) continue;
      float v[16];
      Halves::template take<0, kHalves>(v, acc, half);
      finish(v, bias, c, half, row0, work);
      write(p_.epilogue.d, v, half, row0, work);
    }
  }

  /// Waits until TMA has read the staging buffers, so that the block may exit.
  __device__ __forceinline__ void drain() {
    if (lane_ == 0) ptx::tma_store_wait_read<0>();
  }

 private:
  /// Two elements that are adjacent in memory.
  template <class C>
  struct alignas(2 * sizeof(C)) Pair {
    C x[2];
  };
  /// The inner batch index of D. The rows of all groups of a grouped product are one matrix.
  static __device__ __forceinline__ int matrix_of(const Work& work) { return Traits::kGrouped ? 0 : work.inner; }
  /// This lane's first column in a subtile.
  __device__ __forceinline__ int lane_col(int half, const Work& work) const {
    return Halves::col_of(half, work) + lane_ % 4 * 2;
  }
  __device__ __forceinline__ bool is_inside(int half, int row0, const Work& work) const {
    return Halves::row_of(half, row0, work) < p_.m && Halves::piece_col(half, work) < p_.n;
  }

  /// The common epilogues: alpha * v, or act(alpha * v + bias). kAct = kRelu also covers no activation, by a lower
  /// bound of -infinity. TMA stores the results and clips the part outside of D.
  template <bool kHasBias, Activation kAct, class Acc>
  __device__ __forceinline__ void store_unrolled(const Acc& acc, int row0, const Work& work, bool defer) {
    const float lowest = p_.epilogue.act == Activation::kRelu ? 0.0f : -INFINITY;
    uint32_t bias = 0, ahead = 0;
    if constexpr (kHasBias) ahead = load_bias(0, work);
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      if (kHasBias && half % 2 == 0) bias = ahead, ahead = load_bias(half + 2, work);
      float v[16];
#pragma unroll
      for (int i = 0; i < 16; ++i) v[i] = Halves::half_of(acc, half)[i] * p_.epilogue.alpha;
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
      send<false>(packed, half, row0, work);
    }
    if constexpr (Traits::kDefers && !Traits::kGrouped) deferred_row0_ = row0, deferred_work_ = work;
  }

  /// kScale and kBiasRelu where TMA cannot write D. A copy takes much code, so the loop over more than two epilogue
  /// tiles is not unrolled, and each turn branches to the code that stages its registers.
  template <class Acc>
  __device__ __forceinline__ void store_copied(const Acc& acc, int row0, const Work& work) {
    const float lowest = p_.epilogue.act == Activation::kRelu ? 0.0f : -INFINITY;
    uint32_t bias = 0, ahead = load_bias(0, work);
    constexpr int kUnroll = kHalves <= 4 ? kHalves / 2 : 1;
#pragma unroll kUnroll
    for (int piece = 0; piece < kHalves / 2; ++piece) {
      bias = ahead, ahead = load_bias(2 * piece + 2, work);
      if (!is_inside(2 * piece, row0, work)) continue;
      await_buffer();
      tile::with_constant<0, kHalves / 2>(piece, [&](auto which) {
#pragma unroll
        for (int half = 2 * decltype(which)::value; half < 2 * decltype(which)::value + 2; ++half) {
          float v[16];
#pragma unroll
          for (int i = 0; i < 16; ++i) v[i] = Halves::half_of(acc, half)[i] * p_.epilogue.alpha;
          if (p_.bias_pairs) add_bias(v, bias, half);
#pragma unroll
          for (int i = 0; i < 16; ++i) v[i] = ptx::max_or_nan(v[i], lowest);
          pack(packed_[0], v);
          stage(packed_[0], half);
        }
      });
      copy_piece(2 * piece, row0, work);
    }
  }

  /// Any epilogue. The loop is not unrolled, because its body is long.
  template <class Acc>
  __device__ __forceinline__ void store_any(const Acc& acc, int row0, const Work& work) {
    uint32_t bias = 0, ahead = load_bias(0, work), c_ahead[8];
    load_c(c_ahead, 0, row0, work);
#pragma unroll 1
    for (int half = 0; half < kHalves; ++half) {
      if (half % 2 == 0) bias = ahead, ahead = load_bias(half + 2, work);
      uint32_t c[8];
      take_c(c, c_ahead, half + 1, row0, work);
      if (!is_inside(half, row0, work)) continue;
      float v[16];
      Halves::template take<0, kHalves>(v, acc, half);
      finish(v, bias, c, half, row0, work);
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

  /// Grouped: act(v + bias of the group), either of which may be absent. The loop is not unrolled, because its body is
  /// long.
  template <class Acc>
  __device__ __forceinline__ void store_finished(const Acc& acc, int row0, const Work& work) {
    const T* const bias = static_cast<const T*>(p_.epilogue.bias);
    const int columns = Traits::kSwapped ? p_.m : p_.n;
#pragma unroll 1
    for (int half = 0; half < kHalves; ++half) {
      float v[16];
      Halves::template take<0, kHalves>(v, acc, half);
      if (bias != nullptr) {
        const T* const of_group = bias + static_cast<int64_t>(work.inner) * columns;
        const int first = Traits::kSwapped ? Halves::row_of(half, row0, work) + lane_ / 4 : lane_col(half, work);
#pragma unroll
        for (int i = 0; i < 16; ++i) {
          const int column = first + (Traits::kSwapped ? i / 2 % 2 * 8 : i / 4 * 8 + i % 2);
          v[i] += to_float(of_group[min(column, columns - 1)]);
        }
      }
      activate(v, p_.epilogue.act);
      pack(packed_[0], v);
      send<false>(packed_[0], half, row0, work);
    }
  }

  /// Gated: act(gate) * up. Of each 16 columns of the accumulators, the first eight are the gate's, the others up's.
  /// Two subtiles become one.
  template <class Acc>
  __device__ __forceinline__ void store_gated(const Acc& acc, int row0, const Work& work) {
    Work stored = work;
    stored.n0 /= 2;
#pragma unroll 1
    for (int half = 0; half < kHalves / 2; ++half) {
      float v[16], up[16];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float both[16];
        Halves::template take<0, kHalves>(both, acc, 2 * half + i);
#pragma unroll
        for (int j = 0; j < 8; ++j) {
          v[8 * i + j] = both[j / 4 * 8 + j % 4];
          up[8 * i + j] = both[j / 4 * 8 + 4 + j % 4];
        }
      }
      activate(v, p_.epilogue.act);
#pragma unroll
      for (int i = 0; i < 16; ++i) v[i] *= up[i];
      pack(packed_[0], v);
      send<false>(packed_[0], half, row0, stored);
    }
  }
  /// Gated with SwapAB: the rows of the accumulators are columns of D, eight of the gate before eight of up, and a
  /// thread has one of each. The results are few, and are stored as they are.
  template <class Acc>
  __device__ __forceinline__ void store_gated_columns(const Acc& acc, int row0, const Work& work) {
    const int column = row0 / 2 + lane_ / 4;
    T* const d = static_cast<T*>(p_.epilogue.d) + column;
#pragma unroll 1
    for (int half = 0; half < kHalves; ++half) {
      float v[16];
      Halves::template take<0, kHalves>(v, acc, half);
      float gate[16];
#pragma unroll
      for (int i = 0; i < 16; ++i) gate[i] = v[i];
      activate(gate, p_.epilogue.act);
      const int row = Halves::col_of(half, work) + lane_ % 4 * 2;
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const int at = row + i / 2 * 8 + i % 2, from = i / 2 * 4 + i % 2;
        if (at < work.row_end && column < p_.m) d[at * p_.epilogue.ldd] = from_float<T>(gate[from] * v[from + 2]);
      }
    }
  }

  /// v = act(alpha * v + beta * C + bias). The argument of act is stored to pre_activation, if the caller asked for it.
  /// `c`: from load_c().
  __device__ __forceinline__ void finish(float (&v)[16], uint32_t bias, const uint32_t (&c)[8], int half, int row0,
                                         const Work& work) {
    const tile::EpilogueParams& e = p_.epilogue;
#pragma unroll
    for (int i = 0; i < 16; ++i) v[i] *= e.alpha;
    if (kLoadsAhead && p_.c_pairs) {
      add_loaded_c(v, c);
    } else if (e.c != nullptr) {
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
    activate(v, e.act);
  }
  static __device__ __forceinline__ void activate(float (&v)[16], Activation act) {
    switch (act) {  // one loop per activation: the choice is made once, not per element
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

  /// Two elements of a row from column `col` on. A column beyond the last is clamped, so that no load needs a branch;
  /// results of such columns are not stored.
  template <class C>
  __device__ __forceinline__ Pair<C> load_pair(const C* row, int64_t stride, int col) const {
    const int last = p_.n - 1;
    if (p_.c_pairs) return *reinterpret_cast<const Pair<C>*>(row + min(col, last - 1));
    return {{row[min(col, last) * stride], row[min(col + 1, last) * stride]}};
  }
  /// The bias of an epilogue tile's columns, distributed over the warp: each lane has two adjacent elements. Returns 0
  /// if the bias cannot be read in pairs.
  __device__ __forceinline__ uint32_t load_bias(int half, const Work& work) const {
    if (!p_.bias_pairs) return 0;
    const int col = min(Halves::piece_col(half, work) + 2 * lane_, p_.n - 2);
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
  /// The matrix of C that the tile's results are added to.
  template <class C>
  __device__ __forceinline__ const C* matrix_of_c(const Work& work) const {
    const tile::EpilogueParams& e = p_.epilogue;
    return static_cast<const C*>(e.c) + work.outer * e.c_batch[0] + work.inner * e.c_batch[1];
  }
  /// The distance of a row in that matrix. Merged: of the last row instead, where a row does not exist.
  __device__ __forceinline__ int64_t row_in_c(int row, const Work& work) const {
    if constexpr (Traits::kMerged) {
      const MergedRows& merged = merged_rows();
      const MergedRows::Place at = place_of(row, work);
      return min(at.fast, merged.fast - 1) * merged.c_fast + min(at.slow, merged.slow - 1) * merged.c_slow;
    }
    return row * p_.epilogue.c_row;
  }
  /// kLoadsAhead: loads this lane's elements of C in a subtile, if C can be read in pairs: four pairs of one row, then
  /// of the row eight further.
  __device__ __forceinline__ void load_c(uint32_t (&c)[8], int half, int row0, const Work& work) const {
    if constexpr (kLoadsAhead) {
      if (!p_.c_pairs || half >= kHalves) return;
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const int row = min(Halves::row_of(half, row0, work) + lane_ / 4 + i / 4 * 8, p_.m - 1);
        const int col = min(lane_col(half, work) + i % 4 * 8, p_.n - 2);
        c[i] = *reinterpret_cast<const uint32_t*>(matrix_of_c<T>(work) + row_in_c(row, work) + col);
      }
    }
  }
  /// Moves the pairs that were loaded ahead to `c`, and loads those of subtile `next`.
  __device__ __forceinline__ void take_c(uint32_t (&c)[8], uint32_t (&ahead)[8], int next, int row0,
                                         const Work& work) const {
    if constexpr (kLoadsAhead) {
#pragma unroll
      for (int i = 0; i < 8; ++i) c[i] = ahead[i];
      load_c(ahead, next, row0, work);
    }
  }
  __device__ __forceinline__ void add_loaded_c(float (&v)[16], const uint32_t (&c)[8]) const {
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      Pair<T> pair;
      memcpy(&pair, &c[i / 2 % 2 * 4 + i / 4], sizeof(pair));
      v[i] = fmaf(p_.epilogue.beta, to_float(pair.x[i % 2]), v[i]);
    }
  }
  template <class C>
  __device__ __forceinline__ void add_c(float (&v)[16], int half, int row0, const Work& work) {
    const tile::EpilogueParams& e = p_.epilogue;
    const C* c = matrix_of_c<C>(work);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = min(Halves::row_of(half, row0, work) + lane_ / 4 + 8 * h, p_.m - 1);
      Pair<C> pairs[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        pairs[j] = load_pair(c + row_in_c(row, work), e.c_col, lane_col(half, work) + 8 * j);
      }
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        float& x = v[i / 2 * 4 + 2 * h + i % 2];
        x = fmaf(e.beta, to_float(pairs[i / 2].x[i % 2]), x);
      }
      __syncwarp();  // so that the second row's addresses reuse the registers of the first row's
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

  /// Stages a subtile. After the second subtile of an epilogue tile TMA stores both; with `kCopies` the warp does.
  template <bool kCopies>
  __device__ __forceinline__ void send(const uint32_t (&packed)[8], int half, int row0, const Work& work) {
    if constexpr (Traits::kSwapped) return send_transposed(packed, half, row0, work);
    if constexpr (Traits::kSymmetric) return send_twice(packed, half, row0, work);
    if (half % 2 == 0) await_buffer();
    stage(packed, half);
    if (half % 2 == 0) return;
    const int row = Stored::row_of(half, row0, work), col = Stored::piece_col(half, work);
    if constexpr (Traits::kGrouped) {
      if (work.row_end - row < 16) {
        __syncwarp();
        store_rows(buffer(), row, work.row_end, col, p_.n, lane_, 32);
        if (lane_ == 0) ptx::tma_store_commit();  // of nothing: the waits count groups
        return next_buffer();
      }
    }
    if constexpr (kCopies) return copy_piece(half - 1, row0, work);
    if constexpr (Traits::kMerged) {
      __syncwarp();
      store_merged_rows(row, col, work);
      return next_buffer();
    }
    ptx::fence_proxy_async();
    __syncwarp();
    if (lane_ == 0) {
      ptx::tma_store(&p_.d, buffer(), {col, row, matrix_of(work), work.outer});
      ptx::tma_store_commit();
    }
    next_buffer();
  }
  /// Waits until the next buffer may be written.
  __device__ __forceinline__ void await_buffer() const {
    if (!reuses_) return;
    if (lane_ == 0) ptx::tma_store_wait_read<Traits::kStagingBuffers - 1>();
    __syncwarp();
  }
  /// Copies the staged epilogue tile that begins with subtile `half` to D.
  __device__ __forceinline__ void copy_piece(int half, int row0, const Work& work) {
    const int row = Halves::row_of(half, row0, work), col = Halves::piece_col(half, work);
    __syncwarp();
    copy_out<2>(static_cast<T*>(p_.epilogue.d) + offset_of(row, col, work), half, row, col, work);
    next_buffer();
  }
  /// SwapAB: an epilogue tile is 64 rows of D, and a warp has 32 bytes of each row. The warpgroup's four warps stage it
  /// together, so that TMA stores whole lines.
  __device__ __forceinline__ void send_transposed(const uint32_t (&packed)[8], int half, int row0, const Work& work) {
    const int group = static_cast<int>(threadIdx.x) / 128, warp = static_cast<int>(threadIdx.x) / 32 % 4;
    const uint32_t piece = buffer() - warp * Traits::kStagingWarpBytes;
    if (half % 2 == 0 && reuses_) {
      if (warp == 0 && lane_ == 0) ptx::tma_store_wait_read<Traits::kStagingBuffers - 1>();
      ptx::barrier_sync(NamedBarrier::kEpilogueTile + group, Traits::kWarpgroupThreads);
    }
    stage_transposed(packed, half, piece, warp);
    if (half % 2 == 0) return;
    if constexpr (Traits::kGrouped) {
      const int row = Halves::piece_col(half, work), col = Halves::row_of(half, row0, work) - warp * 16;
      if (work.row_end - row < 64) {
        ptx::barrier_sync(NamedBarrier::kEpilogueTile + group, Traits::kWarpgroupThreads);
        store_rows(piece, row, work.row_end, col, p_.m, warp * 32 + lane_, Traits::kWarpgroupThreads);
        if (warp == 0 && lane_ == 0) ptx::tma_store_commit();  // of nothing: the waits count groups
        return next_buffer();
      }
    }
    ptx::fence_proxy_async();
    ptx::barrier_sync(NamedBarrier::kEpilogueTile + group, Traits::kWarpgroupThreads);
    if (warp == 0 && lane_ == 0) {
      ptx::tma_store(&p_.d, piece,
                     {Halves::row_of(half, row0, work), Halves::piece_col(half, work), matrix_of(work), work.outer});
      ptx::tma_store_commit();
    }
    next_buffer();
  }
  /// Symmetric: stores an epilogue tile as it is, as send() does, and transposed, as send_transposed() does. The first
  /// buffer has the one, the second buffer the other.
  __device__ __forceinline__ void send_twice(const uint32_t (&packed)[8], int half, int row0, const Work& work) {
    const int group = static_cast<int>(threadIdx.x) / 128, warp = static_cast<int>(threadIdx.x) / 32 % 4;
    const uint32_t mirrored = buffer() + Traits::kStagingBytes - warp * Traits::kStagingWarpBytes;
    if (half % 2 == 0 && reuses_) {
      if (lane_ == 0) ptx::tma_store_wait_read<0>();
      ptx::barrier_sync(NamedBarrier::kEpilogueTile + group, Traits::kWarpgroupThreads);
    }
    stage(packed, half);
    stage_transposed(packed, half, mirrored, warp);
    if (half % 2 == 0) return;
    const int row = Halves::row_of(half, row0, work), col = Halves::piece_col(half, work);
    ptx::fence_proxy_async();
    ptx::barrier_sync(NamedBarrier::kEpilogueTile + group, Traits::kWarpgroupThreads);
    if (lane_ == 0) {
      ptx::tma_store(&p_.d, buffer(), {col, row, work.inner, work.outer});
      const CUtensorMap& mirror = static_cast<const ParamsOf<Traits>&>(p_).mirror;
      if (warp == 0) ptx::tma_store(&mirror, mirrored, {row, col, work.inner, work.outer});
      ptx::tma_store_commit();
    }
    next_buffer();
    next_buffer();
  }
  /// Stages a subtile transposed, in lines of 64 rows of the warpgroup, to which each of its four warps contributes 32
  /// bytes. `piece`: the warpgroup's buffer.
  __device__ __forceinline__ void stage_transposed(const uint32_t (&packed)[8], int half, uint32_t piece, int warp) {
    const int line = lane_ / 16 * 8 + lane_ % 8, chunk = (warp * 2 + lane_ / 8 % 2) ^ lane_ % 8;
    const uint32_t first = ptx::opaque(piece + line * kLine + chunk * 16) + half % 2 * 32 * kLine;
    ptx::stmatrix_x4_trans(first, packed[0], packed[1], packed[2], packed[3]);
    ptx::stmatrix_x4_trans(first + 16 * kLine, packed[4], packed[5], packed[6], packed[7]);
  }
  /// Grouped: stores the rows before `row_end` of a staged epilogue tile whose first element is (row, col) of D, by
  /// `threads` threads, this one being number `thread`. A 16-byte chunk that begins in D is stored whole, as TMA does:
  /// D's rows are padded to a multiple of 16 bytes.
  __device__ __forceinline__ void store_rows(uint32_t staged, int row, int row_end, int col, int columns, int thread,
                                             int threads) const {
    constexpr int kChunks = kLine / 16;
    const int first = thread / kChunks, chunk = thread % kChunks;
    if (col + chunk * 8 >= columns) return;
    T* const d = static_cast<T*>(p_.epilogue.d) + col + chunk * 8;
    for (int r = first; row + r < row_end; r += threads / kChunks) {
      const uint32_t at = staged + r * kLine + (chunk ^ r % 8) * 16;
      *reinterpret_cast<uint4*>(d + (row + r) * p_.epilogue.ldd) =
          *static_cast<const uint4*>(__cvta_shared_to_generic(at));
    }
  }
  /// Merged: stores a staged epilogue tile whose first element is (row, col), where rows of D are aligned and have
  /// whole chunks of 16 bytes. Eight lanes store a line.
  __device__ __forceinline__ void store_merged_rows(int row, int col, const Work& work) const {
    constexpr int kChunks = kLine / 16, kRows = 32 / kChunks;
    const int lane = static_cast<int>(ptx::opaque(static_cast<uint32_t>(lane_)));  // else registers spill
    const int first = lane / kChunks, chunk = lane % kChunks;
    if (col + chunk * 8 >= p_.n) return;
    T* const d = static_cast<T*>(p_.epilogue.d) + offset_of(row, col + chunk * 8, work);
#pragma unroll 2
    for (int i = 0; i < 16; i += kRows) {
      const int r = i + first;
      const uint4 x = *static_cast<const uint4*>(__cvta_shared_to_generic(chunk_at(chunk / 4, r, chunk % 4)));
      if (has_row(row + r, work)) *reinterpret_cast<uint4*>(d + row_in_d(row, r, work)) = x;
    }
  }
  __device__ __forceinline__ void next_buffer() { sent_ = reuses_ ? (sent_ + 1) % Traits::kStagingBuffers : sent_ + 1; }
  __device__ __forceinline__ uint32_t buffer() const { return staging_ + sent_ * Traits::kStagingBytes; }
  /// The address of a 16-byte chunk of a subtile in the buffer's 16 swizzled lines.
  __device__ __forceinline__ uint32_t chunk_at(int half, int row, int chunk) const {
    return buffer() + row * kLine + ((half % 2 * 4 + chunk) ^ (row % 8)) * 16;
  }
  __device__ __forceinline__ void stage(const uint32_t (&packed)[8], int half) {
    // The swizzle is an XOR, and so is a step by an even number of chunks.
    const uint32_t first = ptx::opaque(chunk_at(0, lane_ % 16, lane_ / 16));
#pragma unroll
    for (int j = 0; j < 4; j += 2) {
      const uint32_t* x = packed + j * 2;
      ptx::stmatrix_x4(first ^ (half % 2 * 4 + j) * 16, x[0], x[1], x[2], x[3]);
    }
  }

  /// Stores a subtile without TMA to a matrix of D's type and strides, which may have any alignment.
  __device__ __forceinline__ void write(void* matrix, const float (&v)[16], int half, int row0, const Work& work) {
    const int row = Halves::row_of(half, row0, work), col = Halves::col_of(half, work);
    const int64_t at = offset_of(row, col, work);
    if (p_.epilogue.out_f32) {
      write_f32(static_cast<float*>(matrix) + at, v, row, col, work);
    } else {
      if (p_.store_tma) {  // TMA may still be reading earlier subtiles
        if (lane_ == 0) ptx::tma_store_wait_read<0>();
        __syncwarp();
      }
      pack(packed_[0], v);
      stage(packed_[0], half);
      __syncwarp();
      copy_out<1>(static_cast<T*>(matrix) + at, half, row, col, work);
      __syncwarp();
    }
  }
  /// Where the elements of D begin that row_in_d() counts from: at (row, col). Merged: at column `col` of the matrices.
  __device__ __forceinline__ int64_t offset_of(int row, int col, const Work& work) const {
    const tile::EpilogueParams& e = p_.epilogue;
    if constexpr (Traits::kMerged) return work.outer * e.d_batch[0] + col;
    return work.outer * e.d_batch[0] + work.inner * e.d_batch[1] + row * e.ldd + col;
  }
  /// The distance from there to the row `r` rows behind `row`.
  __device__ __forceinline__ int64_t row_in_d(int row, int r, const Work& work) const {
    if constexpr (Traits::kMerged) {
      const MergedRows::Place at = place_of(row + r, work);
      return at.fast * merged_rows().d_fast + at.slow * merged_rows().d_slow;
    }
    return r * p_.epilogue.ldd;
  }
  __device__ __forceinline__ bool has_row(int row, const Work& work) const {
    if constexpr (Traits::kMerged) return merged_rows().has(row, place_of(row, work));
    return row < p_.m;
  }
  __device__ __forceinline__ const MergedRows& merged_rows() const {
    return static_cast<const MergedParams&>(p_).merged;
  }
  __device__ __forceinline__ MergedRows::Place place_of(int row, const Work& work) const {
    return merged_rows().place_of(row, static_cast<const MergedWork&>(work).first);
  }
  __device__ __forceinline__ void write_f32(float* dst, const float (&v)[16], int row, int col, const Work& work) {
    const int left = p_.n - col - lane_ % 4 * 2;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int r = lane_ / 4 + 8 * h;
      if (!has_row(row + r, work)) continue;
      float* out = dst + row_in_d(row, r, work) + lane_ % 4 * 2;
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
  /// Copies HALVES staged subtiles, from `first` on, to rows of D that may start at any address.
  template <int HALVES>
  __device__ __forceinline__ void copy_out(T* dst, int first, int row, int col, const Work& work) {
    constexpr int kBatch = Traits::WM / 64 * Traits::BN / 2 > 160 ? 1 : 2;
    const auto chunk_of = [=](int r, int chunk) { return chunk_at(first, r, chunk); };
    if constexpr (Traits::kMerged) {
      copy_staged_rows<T, HALVES, kBatch>([&](int r) { return dst + row_in_d(row, r, work); },
                                          [&](int r) { return has_row(row + r, work); }, 16, p_.n - col, lane_,
                                          chunk_of);
    } else {
      const int64_t ldd = p_.epilogue.ldd;
      copy_staged_rows<T, HALVES, kBatch>([=](int r) { return dst + r * ldd; }, [](int) { return true; }, p_.m - row,
                                          p_.n - col, lane_, chunk_of);
    }
  }

  const Params& p_;
  uint32_t staging_;  // (kStagingBuffers, 16, 128 bytes)
  int lane_;
  bool reuses_ = true;                                 // false where every epilogue tile has a buffer of its own
  uint32_t sent_ = 0;                                  // the next buffer
  uint32_t packed_[Traits::kDefers ? kHalves : 1][8];  // rounded results of a tile, in the order of stmatrix
  int deferred_row0_;
  Work deferred_work_;
};

}  // namespace hgemm::sm90_wgmma
