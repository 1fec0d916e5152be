// The accumulators of a consumer warpgroup, and their positions in D.
#pragma once

#include <type_traits>

#include "kernels/sm90_wgmma/tile_scheduler.cuh"
#include "ptx/wgmma.cuh"

namespace hgemm::sm90_wgmma {

/// The accumulators of one consumer thread for a tile.
template <class Traits>
using Accumulators = typename ptx::Wgmma<typename Traits::T>::Sum[Traits::WM / 64][Traits::BN / 2];

/// The accumulators of one consumer thread for a residue tile: twice 64 rows of 128 columns.
using EdgeAccumulators = float[2][64];
template <class Acc>
constexpr bool is_edge = std::is_same_v<std::remove_const_t<Acc>, EdgeAccumulators>;

/// Maps a warpgroup's accumulators to D, one 32-column subtile (a half in identifiers) at a time. A subtile has 64
/// rows, 16 for each warp. Two subtiles make an epilogue tile of 64 columns (a piece in identifiers).
template <class Traits>
struct Halves {
  static constexpr int BN = Traits::BN;
  static constexpr int kPiecesPerRow = (BN + 63) / 64;

  /// The first column, in the tile, of an epilogue tile. The last epilogue tile of a row may overlap its neighbour, and
  /// writes the same values again.
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
  template <class Acc>
  static __device__ __forceinline__ auto* half_of(Acc& acc, int half) {
    if constexpr (Traits::kEdged && is_edge<Acc>) return acc[half / 4] + half % 4 * 16;
    return acc[half / 2 / kPiecesPerRow] + first_column(half / 2 % kPiecesPerRow) / 2 + half % 2 * 16;
  }
  /// Copies subtile `half` of the accumulators, with kFirst <= half < kLast, to `v`. Registers cannot be indexed at run
  /// time, so comparisons find the subtile.
  template <int kFirst, int kLast, class Acc>
  static __device__ __forceinline__ void take(float (&v)[16], const Acc& acc, int half) {
    if constexpr (kFirst + 1 < kLast) {
      constexpr int kMiddle = (kFirst + kLast) / 2;
      if (half < kMiddle) {
        take<kFirst, kMiddle>(v, acc, half);
      } else {
        take<kMiddle, kLast>(v, acc, half);
      }
    } else {
#pragma unroll
      for (int i = 0; i < 16; ++i) v[i] = half_of(acc, kFirst)[i];
    }
  }
};

}  // namespace hgemm::sm90_wgmma
