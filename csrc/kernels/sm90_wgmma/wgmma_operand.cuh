// An operand's tile in shared memory, in the layout that TMA writes and wgmma reads.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "core/problem.h"
#include "ptx/tma.cuh"
#include "ptx/wgmma.cuh"

namespace hgemm::sm90_wgmma {

/// One operand's tile of EXTENT outer indices (rows of A, columns of B) by BK in a stage, and how SHARERS blocks load
/// it together. K-major: EXTENT lines of 64 k each. MN-major: for each 64 outer indices a chunk of BK lines, each of
/// which holds these 64 indices for one k.
template <int EXTENT, int BK, Major kMajor, int SHARERS>
struct WgmmaOperand {
  static_assert(BK == 64, "a K-major line is one swizzle span of 64 elements");
  static constexpr bool kIsKMajor = kMajor == Major::kK;
  static constexpr int kSharers = SHARERS;
  static constexpr int kTranspose = kIsKMajor ? 0 : 1;
  static constexpr int kLine = 128, kChunkBytes = BK * kLine;
  static constexpr int kChunks = (EXTENT + 63) / 64;
  static constexpr int kLines = kIsKMajor ? EXTENT : BK;  // of a chunk
  // A box starts and ends on a swizzle atom (8 lines). So the boxes of the sharing blocks may overlap, where they write
  // the same values.
  static constexpr int kBoxRows = (kLines / SHARERS + 7) / 8 * 8;
  static constexpr int kLoadedBytes = SHARERS * kBoxRows * kLine * (kIsKMajor ? 1 : kChunks);
  static constexpr int kStepBytes = kIsKMajor ? 32 : 16 * kLine;  // to the next 16 k
  static_assert(kLines % 8 == 0 && kBoxRows <= kLines);
  /// Whether the boxes of a K-major tile can end where the operand does: they do not overlap.
  static constexpr bool kCanTrim = kIsKMajor && SHARERS * kBoxRows == kLines;

  /// Loads this block's share of the tile at (outer, k), and multicasts it to the blocks in the mask `sharers`.
  static __device__ __forceinline__ void load(uint32_t dst, uint32_t bar, const CUtensorMap& map, int outer, int k,
                                              int batch_inner, int batch_outer, uint32_t share, uint16_t sharers) {
    each_box(outer, k, batch_inner, batch_outer, share,
             [&](int offset, ptx::TmaCoord at) { load_box(dst + offset, map, bar, at, sharers); });
  }
  /// Prefetches the same share to L2.
  static __device__ __forceinline__ void prefetch(const CUtensorMap& map, int outer, int k, int batch_inner,
                                                  int batch_outer, uint32_t share, uint16_t) {
    each_box(outer, k, batch_inner, batch_outer, share,
             [&](int, ptx::TmaCoord at) { ptx::tma_prefetch_box(&map, at); });
  }
  /// The wgmma descriptor of the tile from outer index `first`, a multiple of 64, on.
  static __device__ __forceinline__ uint64_t descriptor(uint32_t tile, int first) {
    static_assert(64 * kLine == kChunkBytes, "64 outer indices take the same space in both orders");
    return ptx::wgmma_descriptor(tile + first * kLine, kChunkBytes, 8 * kLine);
  }

 private:
  template <class Visit>
  static __device__ __forceinline__ void each_box(int outer, int k, int batch_inner, int batch_outer, uint32_t share,
                                                  const Visit& visit) {
    const int first = min(static_cast<int>(share) * kBoxRows, kLines - kBoxRows);
    if constexpr (kIsKMajor) {
      visit(first * kLine, ptx::TmaCoord{k, outer + first, batch_inner, batch_outer});
    } else {
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
        visit(c * kChunkBytes + first * kLine, ptx::TmaCoord{outer + c * 64, k + first, batch_inner, batch_outer});
      }
    }
  }
  static __device__ __forceinline__ void load_box(uint32_t dst, const CUtensorMap& map, uint32_t bar, ptx::TmaCoord at,
                                                  uint16_t sharers) {
    if constexpr (SHARERS == 1) {
      ptx::tma_load(dst, &map, bar, at);
    } else {
      ptx::tma_load_multicast(dst, &map, bar, at, sharers);
    }
  }
};

}  // namespace hgemm::sm90_wgmma
