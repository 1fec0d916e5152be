// Ids of a block's named barriers.
#pragma once

namespace hgemm::sm90_wgmma {

/// Ids of named barriers. Id 0 belongs to __syncthreads. (2): one barrier for each consumer warpgroup. The table in
/// kernel.cuh says which threads arrive and wait at each.
struct NamedBarrier {
  static constexpr int kMathOrder = 1;        // (2) pingpong: the warpgroup may start its main loop
  static constexpr int kPartialsWritten = 3;  // stream-K: the block's partial sums have been stored
  static constexpr int kStagesRead = 4;       // (2) pingpong: the warpgroup has read its last stage
  static constexpr int kEpilogueTile = 6;     // (2) SwapAB, Symmetric: the warpgroup stages an epilogue tile together
  static constexpr int kSumsRead = 8;         // split-K: the sums of the other blocks have been added
  static constexpr int kTailCleared = 9;      // (2) GroupedK: the end of a tile's last k-tile has been cleared
};

}  // namespace hgemm::sm90_wgmma
