// Operand tiles in shared memory, from which ldmatrix loads the fragments of mma.sync.
#pragma once

#include <cstdint>

#include "core/problem.h"
#include "ptx/ldmatrix.cuh"
#include "tile/swizzle.cuh"
#include "tile/tile_copy.cuh"

namespace hgemm::tile {

/// The tile of one operand in shared memory, from which a warp loads fragments by ldmatrix. K-major tiles are (EXTENT,
/// BK), MN-major tiles (BK, EXTENT); EXTENT is BM or BN.
template <int EXTENT, int BK, Major kMajor>
struct SmemOperand {
  static constexpr bool kIsKMajor = kMajor == Major::kK;
  static constexpr int kRows = kIsKMajor ? EXTENT : BK;
  static constexpr int kCols = kIsKMajor ? BK : EXTENT;
  using Layout = Swizzle<kCols>;
  template <class T, int THREADS, bool kNarrow>
  using Copy = TileCopy<T, kRows, kCols, kIsKMajor ? 0 : BK, kIsKMajor ? BK : 0, THREADS, kNarrow>;

  /// The offset of this lane's ldmatrix row in the 16 (outer) x 16 (k) block at the warp's origin. `outer8` and `k8` (0
  /// or 1) select the 8x8 matrix of the block that the lane addresses.
  static __device__ __forceinline__ uint32_t lane_offset(int origin, int outer8, int k8) {
    const int r = threadIdx.x % 8;
    return kIsKMajor ? Layout::offset(origin + outer8 * 8 + r, k8) : Layout::offset(k8 * 8 + r, origin / 8 + outer8);
  }
  /// Moves an offset by i blocks along the outer index and s blocks along k. Steps along the contiguous index change
  /// only chunk bits that are zero at the origin, so they commute with the swizzle's XOR.
  static __device__ __forceinline__ uint32_t at(uint32_t lane, int i, int s) {
    const int row16 = kIsKMajor ? i : s, chunk2 = kIsKMajor ? s : i;
    return (lane ^ (chunk2 * 32)) + row16 * 16 * (kCols * 2);
  }
  static __device__ __forceinline__ void load(uint32_t (&r)[4], uint32_t addr) {
    if constexpr (kIsKMajor) {
      ptx::ldmatrix_x4(r, addr);
    } else {
      ptx::ldmatrix_x4_trans(r, addr);
    }
  }
};

}  // namespace hgemm::tile
