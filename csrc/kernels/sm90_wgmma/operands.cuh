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

/// Whether the boxes of an operand end where it does. For lines beyond its end TMA would write zeros to shared memory,
/// more slowly than it loads lines (NOTES.md). The lines of a stage that no box fills keep what was there before. They
/// only reach rows and columns of D that are not stored.
///
/// Barriers count arrivals and not who arrives, so a block must not get ahead of the others of its cluster. It cannot,
/// because each of them loads something for it in every step, once all have released the stage: a block whose share of
/// a tile lies beyond the operand's end loads one line there for the others. Without that, a block in the corner of a
/// cluster of 2x2 might need no lines at all, and would wait for nobody.
///
/// Stream-K kernels of large tiles have no registers left for the choice. Merged A has boxes of its own.
template <class Traits>
constexpr bool may_trim =
    !Traits::kGrouped && !Traits::kGroupsK && !(Traits::kStreamK && Traits::BM * Traits::BN >= 128 * 192);
template <class Traits>
constexpr bool trims_a = may_trim<Traits> && !Traits::kMerged && SmemA<Traits>::kCanTrim;
template <class Traits>  // the whole tiles of an Edged kernel have all columns
constexpr bool trims_b = may_trim<Traits> && !Traits::kEdged && SmemB<Traits>::kCanTrim;

/// The box that a block loads of a tile, as an index of Params::a and b: a whole one; one with the lines that whole
/// boxes leave of the operand; or, where its share of the tile has no lines of it, one line if blocks share the
/// operand, else nothing.
enum Box : int { kWholeBox, kRestBox, kBoxBeyond };

/// What a block loads of each k-tile of a tile. It is found once for the tile, because with the loads of small tiles
/// the producer thread has no time for more.
struct Boxes {
  int bytes;  // of all boxes that arrive in this block's stage
  Box a, b;
  Box next_a;  // Edged: of the second tile of A
};

/// How many of the `count` lines from `first` on an operand of `extent` lines has.
__device__ __forceinline__ int lines_within(int first, int count, int extent) {
  return min(max(extent - first, 0), count);
}

/// This block's part of k-tile `kt` of both operands. each() calls visit(WgmmaOperand, offset in the stage in bytes,
/// the arguments of WgmmaOperand::load behind `bar`...) for each operand.
template <class Traits, bool = Traits::kEdged, bool = loads_boxes<Traits>>
struct Operands {
  static __device__ __forceinline__ Boxes boxes(const Params& p, const Work& work) {
    if constexpr (Traits::kMerged) {
      const int rows = static_cast<const MergedParams&>(p).merged.loaded_rows;
      const int bytes = rows * SmemA<Traits>::kLine + bytes_of_b(p, work.n0);
      return {bytes, kWholeBox, box_of_b(p, work.n0), kWholeBox};
    }
    return {bytes_of_a(p, work.m0) + bytes_of_b(p, work.n0), box_of_a(p, work.m0), box_of_b(p, work.n0), kWholeBox};
  }
  template <class Visit>
  static __device__ __forceinline__ void each(const Params& p, const Work& work, const Boxes& boxes, int kt,
                                              const Visit& visit) {
    const uint32_t rank = block_rank<Traits>();
    const int n0 = column_of_b(p, work);
    visit_a(p, work, boxes.a, kt, rank, work.m0, visit);
    visit_b(p, work, boxes.b, kt, rank, n0, visit);
  }

 protected:
  /// The bytes of a tile that begins at row `m0` of A, and of one that begins at column `n0` of B.
  static __device__ __forceinline__ int bytes_of_a(const Params& p, int m0) {
    using A = SmemA<Traits>;
    return trims_a<Traits> ? loaded_lines<A>(m0, p.m) * A::kLine : A::kLoadedBytes;
  }
  static __device__ __forceinline__ int bytes_of_b(const Params& p, int n0) {
    using B = SmemB<Traits>;
    return trims_b<Traits> ? loaded_lines<B>(n0, p.n) * B::kLine : B::kLoadedBytes;
  }
  /// This block's box of such tiles.
  static __device__ __forceinline__ Box box_of_a(const Params& p, int m0) {
    return trims_a<Traits> ? box_of<SmemA<Traits>>(m0, share_of_a(block_rank<Traits>()), p.m) : kWholeBox;
  }
  static __device__ __forceinline__ Box box_of_b(const Params& p, int n0) {
    return trims_b<Traits> ? box_of<SmemB<Traits>>(n0, share_of_b(block_rank<Traits>()), p.n) : kWholeBox;
  }
  template <class Operand>
  static __device__ __forceinline__ Box box_of(int first, uint32_t share, int extent) {
    const int lines = lines_within(first + static_cast<int>(share) * Operand::kBoxRows, Operand::kBoxRows, extent);
    return lines == Operand::kBoxRows ? kWholeBox : lines > 0 ? kRestBox : kBoxBeyond;
  }
  /// The lines of all blocks' boxes of a tile.
  template <class Operand>
  static __device__ __forceinline__ int loaded_lines(int first, int extent) {
    int sum = 0;
#pragma unroll
    for (int share = 0; share < Operand::kSharers; ++share) {
      const int lines = lines_within(first + share * Operand::kBoxRows, Operand::kBoxRows, extent);
      sum += Operand::kSharers > 1 ? max(lines, 1) : lines;
    }
    return sum;
  }
  static __device__ __forceinline__ uint32_t share_of_a(uint32_t rank) { return rank / Traits::CM % Traits::CN; }
  static __device__ __forceinline__ uint32_t share_of_b(uint32_t rank) { return rank % Traits::CM; }
  static __device__ __forceinline__ int column_of_b(const Params& p, const Work& work) {
    constexpr bool kFollowsC = SmemB<Traits>::kIsKMajor || Traits::BN % 64 == 0;  // tiles start at C's columns
    return kFollowsC ? work.n0 : work.n0 / Traits::BN * p.pitch_b;
  }
  /// The tile of A that begins at row `m0`.
  template <class Visit>
  static __device__ __forceinline__ void visit_a(const Params& p, const Work& work, Box box, int kt, uint32_t rank,
                                                 int m0, const Visit& visit) {
    if constexpr (Traits::kGated && Traits::kSwapped) {
      return visit(SmemA<Traits>(), 0, p.a[0], 0, kt * Traits::BK, 0, gate_unit(p, work, m0), 0,
                   sharers_of_a<Traits>(rank));
    }
    if constexpr (Traits::kMerged) {  // rows of the stage that no box fills only reach rows of D that are not stored
      const MergedRows::Place first = static_cast<const MergedWork&>(work).first;
      return visit(SmemA<Traits>(), 0, p.a[0], m0 + first.fast, kt * Traits::BK, first.slow, work.outer & p.a_batch[0],
                   0, sharers_of_a<Traits>(rank));
    }
    if (trims_a<Traits> && SmemA<Traits>::kSharers == 1 && box == kBoxBeyond) return;
    visit(SmemA<Traits>(), 0, p.a[trims_a<Traits> ? box : 0], m0, work.k_begin + kt * Traits::BK,
          work.inner & p.a_batch[1], work.outer & p.a_batch[0], share_of_a(rank), sharers_of_a<Traits>(rank));
  }
  template <class Visit>
  static __device__ __forceinline__ void visit_b(const Params& p, const Work& work, Box box, int kt, uint32_t rank,
                                                 int n0, const Visit& visit) {
    if constexpr (Traits::kGated && !Traits::kSwapped) {
      return visit(SmemB<Traits>(), Traits::kStageBytesA, p.b[0], 0, kt * Traits::BK, 0, gate_unit(p, work, n0), 0,
                   sharers_of_b<Traits>(rank));
    }
    if (trims_b<Traits> && SmemB<Traits>::kSharers == 1 && box == kBoxBeyond) return;
    visit(SmemB<Traits>(), Traits::kStageBytesA, p.b[trims_b<Traits> ? box : 0], n0, work.k_begin + kt * Traits::BK,
          work.inner & p.b_batch[1], work.outer & p.b_batch[0], share_of_b(rank), sharers_of_b<Traits>(rank));
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
  static __device__ __forceinline__ Boxes boxes(const Params& p, const Work& work) {
    if (!work.is_edge) return Whole::boxes(p, work);
    const int next = work.m0 + Traits::BM;
    const int bytes = Whole::bytes_of_a(p, work.m0) + Whole::bytes_of_a(p, next) + SmemEdge<Traits>::kLoadedBytes;
    return {bytes, Whole::box_of_a(p, work.m0), kWholeBox, Whole::box_of_a(p, next)};
  }
  template <class Visit>
  static __device__ __forceinline__ void each(const EdgedParams& p, const Work& work, const Boxes& boxes, int kt,
                                              const Visit& visit) {
    const uint32_t rank = block_rank<Traits>();
    const int n0 = Whole::column_of_b(p, work);
    Whole::visit_a(p, work, boxes.a, kt, rank, work.m0, visit);
    if (work.is_edge) {
      Whole::visit_a(p, work, boxes.next_a, kt, rank, work.m0 + Traits::BM,
                     [&](auto operand, int, const auto&... from) { visit(operand, Traits::kStageBytesA, from...); });
      return visit(SmemEdge<Traits>(), 2 * Traits::kStageBytesA, p.b_edge, n0, kt * Traits::BK, 0, 0, rank,
                   sharers_of_b<Traits>(rank));
    }
    Whole::visit_b(p, work, boxes.b, kt, rank, n0, visit);
  }
};

/// Groups of few rows: B is the rows of x. Those that are not loaded keep what the stage held before; they only reach
/// rows of D that are not stored.
template <class Traits>
struct Operands<Traits, false, true> : Operands<Traits, false, false> {
  using Whole = Operands<Traits, false, false>;
  using RowBox = WgmmaOperand<Traits::kBoxRows, Traits::BK, Traits::kMajorB, 1>;
  static __device__ __forceinline__ int row_boxes(const Work& work) {
    return min(work.row_end - work.n0 + Traits::kBoxRows - 1, Traits::BN) / Traits::kBoxRows;
  }
  static __device__ __forceinline__ Boxes boxes(const Params&, const Work& work) {
    return {SmemA<Traits>::kLoadedBytes + row_boxes(work) * RowBox::kLoadedBytes, kWholeBox, kWholeBox, kWholeBox};
  }
  template <class Visit>
  static __device__ __forceinline__ void each(const Params& p, const Work& work, const Boxes& boxes, int kt,
                                              const Visit& visit) {
    Whole::visit_a(p, work, boxes.a, kt, 0, work.m0, visit);
    if (row_boxes(work) == Traits::BN / Traits::kBoxRows) {
      // One load, because a thread issues one in about 100 cycles.
      return visit(SmemB<Traits>(), Traits::kStageBytesA, static_cast<const ParamsOf<Traits>&>(p).b_whole, work.n0,
                   kt * Traits::BK, 0, 0, 0, sharers_of_b<Traits>(0));
    }
    for (int box = 0; box < row_boxes(work); ++box) {
      visit(RowBox(), Traits::kStageBytesA + box * RowBox::kLoadedBytes, p.b[0], work.n0 + box * Traits::kBoxRows,
            kt * Traits::BK, 0, 0, 0, sharers_of_b<Traits>(0));
    }
  }
};

}  // namespace hgemm::sm90_wgmma
