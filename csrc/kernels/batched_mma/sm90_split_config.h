// What the host side of the float32 kernels of batched_mma (sm90_split_list.h, sm90_split_variants.cc) and its CUDA
// side share: configurations, the schedule of a launch, the launcher.
#pragma once

#include "core/problem.h"
#include "tile/split_planes.h"

namespace hgemm::batched_split {

/// The constants of a kernel: pipeline stages, and blocks per SM that the registers are limited for. A block is a
/// warpgroup, and computes 64 x 64 of D.
template <int STAGES_, int RESIDENT_>
struct Config {
  static constexpr int BM = 64, BN = 64, BK = 32, STAGES = STAGES_, RESIDENT = RESIDENT_, kThreads = 128;
  static constexpr int kBytesA = BM * BK * 4, kStageBytes = kBytesA + BN * BK * 4;
  // The planes of B hold 64 k, the last two k-tiles: a line of 128 bytes for each column.
  static constexpr int kPlanesK = 64, kLine = 2 * kPlanesK, kPlaneBytes = BN * kLine;
  static constexpr int kPlanesBytes = tile::split::kPlanes * kPlaneBytes;
  // Results on their way to D take their place, eight rows of a warp. The pitch keeps stores free of bank conflicts.
  static constexpr int kScratchRows = 8, kScratchRow = BN + 16, kScratchBytes = kScratchRows * kScratchRow * 4;
  static constexpr int kSmemBytes = kPlanesBytes + STAGES * kStageBytes;
  static_assert(kThreads / 32 * kScratchBytes <= kPlanesBytes);
  static_assert(STAGES >= 2, "one is read while others arrive");
};

/// True if both operands consist of whole aligned 16-byte chunks.
inline bool is_wide(const Problem& p) {
  return alignment_a(p) == 16 && alignment_b(p) == 16 && (p.a_major() == Major::kK ? p.k : p.m) % 4 == 0 &&
         (p.b_major() == Major::kK ? p.k : p.n) % 4 == 0;
}

/// The choices of one launch.
struct Schedule {
  /// Blocks of the grid, each of which computes one output tile after another.
  int blocks;

  /// The device has programmatic dependent launch.
  bool dependent;
};

/// Enqueues the GEMM and returns a cudaError_t. sm90_split_launch.cuh defines the function; sm90_split_instances.cu
/// instantiates it for each kernel of sm90_split_list.h.
template <class Config>
Status launch(const Problem& p, const Schedule& s, Stream stream);

}  // namespace hgemm::batched_split
