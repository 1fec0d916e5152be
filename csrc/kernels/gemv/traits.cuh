// The compile-time and run-time parameters of gemv's kernel.
#pragma once

#include <cstdint>

#include "core/problem.h"
#include "kernels/gemv/config.h"
#include "tile/epilogue.cuh"

namespace hgemm::gemv {

/// The compile-time parameters: Config, element type, memory order of W, alignment.
template <class Config_, class T_, Major kMajor_, bool kNarrow_>
struct Traits : Config_ {
  using T = T_;
  static constexpr Major kMajor = kMajor_;   // of W
  static constexpr bool kNarrow = kNarrow_;  // the operands are not ShortSide::wide
  static constexpr bool kKMajor = kMajor == Major::kK;
  static constexpr int DEPTH = kKMajor ? Config_::kDepthK : Config_::kDepthMN;
  // Blocks per SM that the registers are limited for. The ends of unaligned rows take registers, and so do conversions
  // before sm_90.
  static constexpr int kBlocksMN = kNarrow && Config_::kBlocksMN > 2 ? Config_::kBlocksMN - 1 : Config_::kBlocksMN;
  static constexpr int kBlocksHere = kKMajor ? Config_::kBlocksK : kBlocksMN;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
  static constexpr int kBlocks = (kBlocksHere + 1) / 2;
#else
  static constexpr int kBlocks = kBlocksHere;
#endif
  static constexpr int kRowStep = kKMajor && kNarrow ? 8 : 1;  // between the rows of a tile
};

/// The run-time parameters. Strides count elements.
struct Params {
  const void *w, *x;
  int64_t ldw, x_row, x_k;          // leading dimension of W; strides of x from row to row and along k
  int64_t w_batch[2], x_batch[2];   // batch strides, outer and inner
  uint32_t batch_inner;             // extent of the inner batch dimension
  int rows, cols, k;                // W is (rows, k), x is (cols, k)
  int lanes, warps, passes, units;  // as in Schedule; units of a warp in a pass
  int tile_rows, slice_k, slices;   // as in Schedule
  bool swapped;                     // the rows of D are those of W; otherwise its columns are
  bool releases_early;              // as in Schedule
  int slot;                         // slot of the arrival counters, -1 for none (tile/counters.h)
  float* partial;                   // partial sums, (batches, tiles, slices, COLS, tile_rows)
  tile::EpilogueParams epilogue;
};

}  // namespace hgemm::gemv
