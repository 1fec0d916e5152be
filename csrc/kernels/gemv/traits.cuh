// What a kernel of gemv is compiled for, and what a launch hands it.
#pragma once

#include <cstdint>

#include "core/problem.h"
#include "kernels/gemv/config.h"
#include "tile/epilogue.cuh"

namespace hgemm::gemv {

/// What the kernel is compiled for.
template <class Config_, class T_, Major kMajor_, bool kNarrow_>
struct Traits : Config_ {
  using T = T_;
  static constexpr Major kMajor = kMajor_;   // of W
  static constexpr bool kNarrow = kNarrow_;  // not ShortSide::wide
  static constexpr bool kKMajor = kMajor == Major::kK;
  static constexpr int DEPTH = kKMajor ? Config_::kDepthK : Config_::kDepthMN;
  // The ends of unaligned rows take registers, and conversions do before sm_90.
  static constexpr int kBlocksMN = kNarrow && Config_::kBlocksMN > 2 ? Config_::kBlocksMN - 1 : Config_::kBlocksMN;
  static constexpr int kBlocksHere = kKMajor ? Config_::kBlocksK : kBlocksMN;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
  static constexpr int kBlocks = (kBlocksHere + 1) / 2;
#else
  static constexpr int kBlocks = kBlocksHere;
#endif
  static constexpr int kRowStep = kKMajor && kNarrow ? 8 : 1;  // between the rows of a tile
};

struct Params {
  const void *w, *x;
  int64_t ldw, x_row, x_k;
  int64_t w_batch[2], x_batch[2];
  uint32_t batch_inner;
  int rows, cols, k;
  int lanes, warps, passes, units;  // units: of a warp in a pass
  int tile_rows, slice_k, slices;
  bool swapped;         // D's rows are W's
  bool releases_early;  // Schedule::releases_early
  int slot;             // of counters
  float* partial;       // (batches, tiles, slices, COLS, tile_rows)
  tile::EpilogueParams epilogue;
};

}  // namespace hgemm::gemv
