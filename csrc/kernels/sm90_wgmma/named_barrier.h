// Named barriers of a block.
#pragma once

namespace hgemm::sm90_wgmma {

/// Named barriers, behind that of __syncthreads; of some there is one for each consumer warpgroup.
struct NamedBarrier {
  static constexpr int kTurn = 1;        // (2) pingpong: the warpgroup may multiply
  static constexpr int kLeft = 3;        // stream-K: a turn's partial sums are in memory
  static constexpr int kMultiplied = 4;  // (2) its warps have read the last stage
  static constexpr int kPiece = 6;       // (2) swapped: its warps share the staging of a piece
  static constexpr int kAdded = 8;       // split K: all sums have been read
};

}  // namespace hgemm::sm90_wgmma
