// Named barriers of a block.
#pragma once

namespace hgemm::sm90_wgmma {

/// Ids of named barriers; 0 is that of __syncthreads. (2): one for each consumer warpgroup. kernel.cuh says who meets
/// at each.
struct NamedBarrier {
  static constexpr int kMathOrder = 1;        // (2) pingpong: the warpgroup may multiply
  static constexpr int kPartialsWritten = 3;  // stream-K: a tile's partial sums are in memory
  static constexpr int kStagesRead = 4;       // (2) pingpong: its warps have read the last stage
  static constexpr int kEpilogueTile = 6;     // (2) SwapAB: its warps share the staging of an epilogue tile
  static constexpr int kSumsRead = 8;         // split K: all sums have been read
};

}  // namespace hgemm::sm90_wgmma
