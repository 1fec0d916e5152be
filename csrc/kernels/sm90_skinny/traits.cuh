// The compile-time traits of a kernel of sm90_skinny, and its launch parameters.
#pragma once

#include <cuda.h>

#include <type_traits>

#include "core/problem.h"
#include "kernels/sm90_skinny/config.h"
#include "ptx/wgmma.cuh"
#include "tile/epilogue.cuh"

namespace hgemm::sm90_skinny {

/// Everything that a kernel is compiled for.
template <class Config_, class T_, Major kMajor_, Major kMajorX_ = Major::kK, bool kGated_ = false,
          bool kNarrow_ = false>
struct Traits : Config_ {
  using T = T_;
  using Sum = typename ptx::Wgmma<T>::Sum;                      // float, or int32_t for int8 operands
  static constexpr Major kMajor = kMajor_, kMajorX = kMajorX_;  // of W and of x
  // D = act(x W1^T) * (x W2^T), where W1 and W2 are the upper and the lower half of W's rows. W and x are K-major, D is
  // not swapped, and there is no batch.
  static constexpr bool kGated = kGated_;
  // Tiles have kNarrowRows rows of an MN-major W. wgmma reads these twice, since it takes 64.
  static constexpr bool kNarrow = kNarrow_;
  static_assert(!kNarrow || (kMajor == Major::kMN && Config_::kGroups == 1));
  // W is int8 and MN-major. wgmma takes it K-major alone, so warps transpose it on its way to registers.
  static constexpr bool kTransposes = std::is_same_v<T, ptx::Int8Pair> && kMajor == Major::kMN;
  static_assert(Config_::PARTS == (kTransposes ? 2 : 1), "a word has four rows: two of each part");
};

struct Params {
  CUtensorMap w, x;
  int32_t w_batch[2], x_batch[2];  // outer, inner: 0 where a batch index does not move the operand, else ~0
  uint32_t batch_inner;
  int rows, cols;  // of W and of x
  int x_tiles;     // Schedule::x_tiles
  int tile_rows;   // of W in a tile, a multiple of 8
  int k_steps, splits, stages;
  int x_shift;      // log2 of the number of lines of an MN-major x in a row of its tensor map
  int finishes;     // finished_warps
  int prefetch;     // Schedule::prefetch
  Release release;  // Schedule::release
  bool swapped;     // D's rows are those of W
  Activation gate;  // gated: the gate's activation; the epilogue then has none
  tile::EpilogueParams epilogue;
};

/// The place of a block in the grid's third dimension: the matrix of the batch; the first row of x in the block's tile,
/// and the number of rows from there on.
struct Place {
  int batch, first, cols;
};
template <class Traits>
__device__ __forceinline__ Place place_of(const Params& p) {
  if constexpr (!Traits::kTilesX) return {static_cast<int>(blockIdx.z), 0, p.cols};
  const int batch = static_cast<int>(blockIdx.z) / p.x_tiles;
  const int first = (static_cast<int>(blockIdx.z) - batch * p.x_tiles) * Traits::COLS;
  return {batch, first, min(p.cols - first, Traits::COLS)};
}

constexpr int kGateRows = 4;  // rows of W1 and rows of W2 that alternate in a tile of a gated W

/// The layout of a stage. First come x's panels: (COLS, 64 k) or, MN-major, (64 k, COLS). Then come W's panels: (tile
/// rows, 64 k) or, MN-major, one (64 k, 64 rows) for each warpgroup. An MN-major int8 W has (128 k, 128 rows), where k
/// counts elements instead of pairs. The swizzle of a panel spans the bytes of a line.
/// A panel of fewer rows takes less space; wgmma still reads 64 rows, and the results of the surplus rows are not used.
template <class Traits>
struct Stage {
  static constexpr bool kKMajor = Traits::kMajor == Major::kK, kKMajorX = Traits::kMajorX == Major::kK;
  static constexpr int kLine = 128, kGroup = 64 * Traits::PARTS * kLine;
  static constexpr int kLineW = Traits::kNarrow ? 2 * kNarrowRows : kLine;
  static constexpr int kPanelX = Traits::COLS * kLine, kLineX = kKMajorX ? kLine : 2 * Traits::COLS;
  // Bytes to the next 16 k, in a panel of W and of x.
  static constexpr int kStepBytes = kKMajor ? 32 : 16 * kLineW, kStepBytesX = kKMajorX ? 32 : 16 * kLineX;

  static __host__ __device__ constexpr int panel_w(int tile_rows) {
    return kKMajor || Traits::kNarrow ? tile_rows * kLine : Traits::kGroups * kGroup;
  }
  static __host__ __device__ constexpr int bytes(int tile_rows) {
    return Traits::PANELS * (kPanelX + panel_w(tile_rows));
  }
  /// The number of stages that fit the ring, given that wgmma reads the last panel as if it had all rows.
  static __host__ __device__ constexpr int count(int tile_rows) {
    const int fit = (Traits::kRingBytes - Traits::kGroups * kGroup + panel_w(tile_rows)) / bytes(tile_rows);
    return fit < Traits::kMaxStages ? fit : Traits::kMaxStages;
  }
};

}  // namespace hgemm::sm90_skinny
