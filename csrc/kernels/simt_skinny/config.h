// What the host side of simt_skinny (list.h, variants.cc) and its CUDA side share: configurations, the schedule of a
// launch, the launcher.
#pragma once

#include "core/problem.h"
#include "core/short_side.h"

namespace hgemm::simt_skinny {

constexpr int kWarps = 8, kThreads = 32 * kWarps;

/// The constants of a kernel: rows of x, pipeline stages, blocks per SM.
template <int COLS_, int STAGES_, int BLOCKS_>
struct Config {
  static constexpr int COLS = COLS_, STAGES = STAGES_, BLOCKS = BLOCKS_;
};

/// The tile of a block, and how its warps and lanes divide the work.
///
/// A block computes the products of BN rows of W and COLS rows of x, in k-tiles of BK. Its warps are arranged WN x WK:
/// WN along the rows of W, and WK along the k of a stage. The lanes of a warp are arranged GM x GN x LK: along the rows
/// of x, the rows of W, and k. A lane has TM x TN sums, of rows of x that are GM apart, and takes four k at a time.
template <class Config_, Major kMajor_>
struct Layout : Config_ {
  static constexpr int COLS = Config_::COLS, STAGES = Config_::STAGES;
  static constexpr Major kMajor = kMajor_;  // of W
  static constexpr bool kKMajor = kMajor == Major::kK;
  static constexpr int BN = kKMajor ? 64 : 128, BK = kKMajor ? 64 : 32;  // 256 or 512 bytes of W in a row of a stage
  static constexpr int TM = COLS % 6 == 0 ? 6 : COLS < 8 ? COLS : 8, TN = COLS <= 8 ? 4 : 8;
  static constexpr int GM = COLS / TM;
  // With an MN-major W, all lanes lie along the rows, so that there are no sums to exchange. With a K-major W, lanes
  // along k read fewer rows of W, and lanes along the rows read fewer k of x. A warp reads least from shared memory
  // where there are about as many of one as of the other.
  static constexpr int GN = kKMajor ? (COLS < 8 ? 2 : 4) : 32 / GM;
  static constexpr int LK = 32 / (GM * GN);
  static constexpr int WN = BN / (GN * TN), WK = kWarps / WN;
  static constexpr int kSlab = 4 * LK;                       // k that a warp takes at a time
  static constexpr int kSlabs = BK / (WK * kSlab);           // such steps of a warp in a stage
  static constexpr int kStepK = kKMajor || TN == 4 ? 4 : 2;  // k of W in registers
  // Row pitches in shared memory, in floats. With the padding, the lanes of a quarter warp read from different banks.
  static constexpr int kPad = LK < 8 ? 4 * LK : 0;
  static constexpr int kPitchX = BK + kPad, kPitchW = kKMajor ? BK + kPad : BN, kPitchSums = BN + 8;
  static constexpr int kStageW = (kKMajor ? BN : BK) * kPitchW, kStage = kStageW + COLS * kPitchX;  // floats
  static constexpr int kRing = STAGES * kStage, kSums = WK * COLS * kPitchSums;  // floats; these share memory
  static constexpr int kSmemBytes = (kRing > kSums ? kRing : kSums) * 4;
  static_assert(GM * TM == COLS && GM * GN * LK == 32, "lanes of a warp");
  static_assert(WN * GN * TN == BN && WN * WK == kWarps && kSlabs * WK * kSlab == BK, "warps of a block");
  static_assert(kKMajor || LK == 1);
};

/// How a launch divides W among blocks.
struct Schedule {
  /// Rows of W in a tile (Layout::BN), the number of tiles, the number of slices of K, and k in a slice.
  int tile_rows, tiles, slices, slice_k;

  /// The device has programmatic dependent launch.
  bool dependent;
};

/// Enqueues the GEMM and returns a cudaError_t. With more than one slice, `workspace` holds (batches, tiles, slices,
/// COLS, BN) floats. launch.cuh defines the function; instances.cu instantiates it for each kernel of list.h.
template <class Config>
Status launch(const Problem& p, const Schedule& s, void* workspace, Stream stream);

}  // namespace hgemm::simt_skinny
