// The parts of A and B that a block loads for a k-tile.
#pragma once

#include <cstdint>

#include "kernels/sm90_wgmma/tile_scheduler.cuh"
#include "kernels/sm90_wgmma/traits.cuh"
#include "kernels/sm90_wgmma/wgmma_operand.cuh"

namespace hgemm::sm90_wgmma {

template <class Traits>
using SmemA = WgmmaOperand<Traits::BM, Traits::BK, Traits::kMajorA, Traits::CN>;
template <class Traits>
using SmemB = WgmmaOperand<Traits::BN, Traits::BK, Traits::kMajorB, Traits::CM>;
/// B of a residue tile.
template <class Traits>
using SmemEdge = WgmmaOperand<Traits::kEdge, Traits::BK, Traits::kMajorB, Traits::CM>;

/// Multicast masks. The blocks of the cluster that need the same tile of A as block `rank` are its row of blocks; those
/// that need the same tile of B are its column.
template <class Traits>
__device__ __forceinline__ uint16_t sharers_of_a(uint32_t rank) {
  constexpr uint32_t kRow = ((1u << Traits::kSharers) - 1) / ((1u << Traits::CM) - 1);  // every CM-th bit
  return static_cast<uint16_t>(Traits::CM == 1 ? kRow : kRow << rank % Traits::CM);
}
template <class Traits>
__device__ __forceinline__ uint16_t sharers_of_b(uint32_t rank) {
  constexpr uint32_t kColumn = (1u << Traits::CM) - 1;
  return static_cast<uint16_t>(Traits::CN == 1 ? kColumn : kColumn << rank / Traits::CM * Traits::CM);
}

/// Whether the tile of B is loaded in boxes of kBoxRows rows, and no box that is beyond the group's end.
template <class Traits>
constexpr bool loads_boxes = Traits::kGrouped && Traits::kSwapped;

/// This block's part of k-tile `kt` of both operands. each() calls visit(WgmmaOperand, offset in the stage in bytes,
/// the arguments of WgmmaOperand::load behind `bar`...) for each operand.
template <class Traits, bool = Traits::kEdged, bool = loads_boxes<Traits>>
struct Operands {
  static __device__ __forceinline__ int loaded_bytes(const Params& p, const Work&) {
    if constexpr (Traits::kMerged) {
      const int rows = static_cast<const MergedParams&>(p).merged.loaded_rows;
      return rows * SmemA<Traits>::kLine + SmemB<Traits>::kLoadedBytes;
    }
    return SmemA<Traits>::kLoadedBytes + SmemB<Traits>::kLoadedBytes;
  }
  template <class Visit>
  static __device__ __forceinline__ void each(const Params& p, const Work& work, int kt, const Visit& visit) {
    const uint32_t rank = block_rank<Traits>();
    const int n0 = column_of_b(p, work);
    visit_a(p, work, kt, rank, visit);
    visit_b(p, work, kt, rank, n0, visit);
  }

 protected:
  static __device__ __forceinline__ int column_of_b(const Params& p, const Work& work) {
    constexpr bool kFollowsC = SmemB<Traits>::kIsKMajor || Traits::BN % 64 == 0;  // tiles start at C's columns
    return kFollowsC ? work.n0 : work.n0 / Traits::BN * p.pitch_b;
  }
  template <class Visit>
  static __device__ __forceinline__ void visit_a(const Params& p, const Work& work, int kt, uint32_t rank,
                                                 const Visit& visit) {
    if constexpr (Traits::kGated && Traits::kSwapped) {
      return visit(SmemA<Traits>(), 0, p.a, 0, kt * Traits::BK, 0, gate_unit(p, work, work.m0), 0,
                   sharers_of_a<Traits>(rank));
    }
    if constexpr (Traits::kMerged) {  // rows of the stage that no box fills only reach rows of D that are not stored
      const MergedRows::Place first = static_cast<const MergedWork&>(work).first;
      return visit(SmemA<Traits>(), 0, p.a, work.m0 + first.fast, kt * Traits::BK, first.slow,
                   work.outer & p.a_batch[0], 0, sharers_of_a<Traits>(rank));
    }
    visit(SmemA<Traits>(), 0, p.a, work.m0, work.k_begin + kt * Traits::BK, work.inner & p.a_batch[1],
          work.outer & p.a_batch[0], rank / Traits::CM % Traits::CN, sharers_of_a<Traits>(rank));
  }
  template <class Visit>
  static __device__ __forceinline__ void visit_b(const Params& p, const Work& work, int kt, uint32_t rank, int n0,
                                                 const Visit& visit) {
    if constexpr (Traits::kGated && !Traits::kSwapped) {
      return visit(SmemB<Traits>(), Traits::kStageBytesA, p.b, 0, kt * Traits::BK, 0, gate_unit(p, work, n0), 0,
                   sharers_of_b<Traits>(rank));
    }
    visit(SmemB<Traits>(), Traits::kStageBytesA, p.b, n0, work.k_begin + kt * Traits::BK, work.inner & p.b_batch[1],
          work.outer & p.b_batch[0], rank % Traits::CM, sharers_of_b<Traits>(rank));
  }
  /// Gated: the unit of the weights with which a tile begins whose columns of gate and up begin at `first`. Both take
  /// the same number of columns in a tile.
  static __device__ __forceinline__ int gate_unit(const Params& p, const Work& work, int first) {
    return work.inner * static_cast<const ParamsOf<Traits>&>(p).gate_units + first / (2 * Traits::kGateColumns);
  }
};

/// A residue tile takes two tiles of A and one of B.
template <class Traits>
struct Operands<Traits, true, false> : Operands<Traits, false, false> {
  using Whole = Operands<Traits, false, false>;
  static __device__ __forceinline__ int loaded_bytes(const Params& p, const Work& work) {
    if (work.is_edge) return 2 * SmemA<Traits>::kLoadedBytes + SmemEdge<Traits>::kLoadedBytes;
    return Whole::loaded_bytes(p, work);
  }
  template <class Visit>
  static __device__ __forceinline__ void each(const EdgedParams& p, const Work& work, int kt, const Visit& visit) {
    const uint32_t rank = block_rank<Traits>();
    const int n0 = Whole::column_of_b(p, work);
    Whole::visit_a(p, work, kt, rank, visit);
    if (work.is_edge) {
      visit(SmemA<Traits>(), Traits::kStageBytesA, p.a, work.m0 + Traits::BM, kt * Traits::BK, 0, 0, 0,
            sharers_of_a<Traits>(rank));
      return visit(SmemEdge<Traits>(), 2 * Traits::kStageBytesA, p.b_edge, n0, kt * Traits::BK, 0, 0, rank,
                   sharers_of_b<Traits>(rank));
    }
    Whole::visit_b(p, work, kt, rank, n0, visit);
  }
};

/// Groups of few rows: B is the rows of x. Those that are not loaded keep what the stage held before; they only reach
/// rows of D that are not stored.
template <class Traits>
struct Operands<Traits, false, true> : Operands<Traits, false, false> {
  using Whole = Operands<Traits, false, false>;
  using Box = WgmmaOperand<Traits::kBoxRows, Traits::BK, Traits::kMajorB, 1>;
  static __device__ __forceinline__ int boxes(const Work& work) {
    return min(work.row_end - work.n0 + Traits::kBoxRows - 1, Traits::BN) / Traits::kBoxRows;
  }
  static __device__ __forceinline__ int loaded_bytes(const Params&, const Work& work) {
    return SmemA<Traits>::kLoadedBytes + boxes(work) * Box::kLoadedBytes;
  }
  template <class Visit>
  static __device__ __forceinline__ void each(const Params& p, const Work& work, int kt, const Visit& visit) {
    Whole::visit_a(p, work, kt, 0, visit);
    if (boxes(work) == Traits::BN / Traits::kBoxRows) {  // one load, because a thread issues one in about 100 cycles
      return visit(SmemB<Traits>(), Traits::kStageBytesA, static_cast<const ParamsOf<Traits>&>(p).b_whole, work.n0,
                   kt * Traits::BK, 0, 0, 0, sharers_of_b<Traits>(0));
    }
    for (int box = 0; box < boxes(work); ++box) {
      visit(Box(), Traits::kStageBytesA + box * Box::kLoadedBytes, p.b, work.n0 + box * Traits::kBoxRows,
            kt * Traits::BK, 0, 0, 0, sharers_of_b<Traits>(0));
    }
  }
};

}  // namespace hgemm::sm90_wgmma
