// What the host side of simt_tile (list.h, variants.cc) and its CUDA side share: configurations, the schedule of a
// launch, the launcher.
#pragma once

#include <algorithm>

#include "core/problem.h"

namespace hgemm::simt_tile {

/// A block computes BM x BN tiles of D, and takes BK k at a time. A thread computes TM x TN results. WK: warps that
/// share a part of the tile, each of which takes its share of the k of a stage. STAGES of the pipeline; BLOCKS: of an
/// SM, that the registers are limited for.
template <int BM_, int BN_, int BK_, int TM_, int TN_, int WK_, int STAGES_, int BLOCKS_>
struct Config {
  static constexpr int BM = BM_, BN = BN_, BK = BK_, TM = TM_, TN = TN_, WK = WK_, STAGES = STAGES_, BLOCKS = BLOCKS_;
  static constexpr int kLanesM = TN > TM ? 8 : 4, kLanesN = 32 / kLanesM;   // how the lanes of a warp lie
  static constexpr int WM = kLanesM * TM, WN = kLanesN * TN, KG = BK / WK;  // the part of a warp
  static constexpr int kWarpsM = BM / WM, kWarpsN = BN / WN, kGroup = 32 * kWarpsM * kWarpsN;
  static constexpr int kThreads = kGroup * WK;
  static constexpr int kFours = TM * TN / 4;  // groups of four neighbouring columns among a thread's results

  // Row pitches in shared memory, in floats. With the padding, copies of a K-major operand meet fewer bank conflicts.
  static constexpr int kPitchA = BM + 4, kPitchB = BN + 4, kPitchSums = BN + 4;
  static constexpr int kStageA = BK * kPitchA, kStage = BK * (kPitchA + kPitchB);
  static constexpr int kSums = std::max(WK == 1 ? 0 : WK * BM * BN, BM* kPitchSums);
  static constexpr int kSmemBytes = 4 * std::max(STAGES * kStage, kSums);

  static_assert(TM % 4 == 0 && TN % 4 == 0, "operands are read in groups of four rows and four columns");
  static_assert(BM % WM == 0 && BN % WN == 0 && BK % WK == 0 && KG % 2 == 0);
  static_assert(kFours % WK == 0, "the warps that share results each add up a part of these");
};

/// How a launch divides the GEMM among blocks.
struct Schedule {
  /// Tiles of D along M and N, slices of K, and k in a slice, a multiple of BK.
  int tiles_m, tiles_n, slices, slice_k;

  /// Blocks that are resident on the device at the same time.
  int resident;

  /// The device has programmatic dependent launch.
  bool dependent;
};

/// Enqueues the GEMM and returns a cudaError_t. With more than one slice, `workspace` holds (batches, tiles_m *
/// tiles_n, slices, BM, BN) floats. launch.cuh defines the function; instances.cu instantiates it for each kernel of
/// list.h.
template <class Config>
Status launch(const Problem& p, const Schedule& s, void* workspace, Stream stream);

}  // namespace hgemm::simt_tile
