// What the host side of simt_gemv (list.h, variants.cc) and its CUDA side share: configurations, the schedule of a
// launch, the launcher.
#pragma once

#include "core/problem.h"
#include "core/short_side.h"

namespace hgemm::simt_gemv {

constexpr int kWarps = 8, kThreads = 32 * kWarps;
constexpr int kBlocks = 2;              // blocks per SM that the registers are limited for
constexpr int kRowsK = 4;               // K-major W: rows of a warp, which all its lanes share
constexpr int kRowsMN = 128;            // MN-major W: rows of a block, at most; each lane has four
constexpr int kMostLanesMN = 4;         // MN-major W: lanes of a warp along k, at most
constexpr int kStepK = 4, kStepMN = 8;  // k that a lane takes at a time, K-major and MN-major

/// The constants of a kernel: rows of x, and units of loads that a thread keeps in flight (list.h says what a unit is).
template <int COLS_, int DEPTH_>
struct Config {
  static constexpr int COLS = COLS_, DEPTH = DEPTH_;
  static constexpr int kSmemBytes = kWarps * COLS * kRowsMN * 4;

  static_assert(COLS >= 2 && COLS * kRowsMN % kThreads == 0);
};

/// How a launch divides W among blocks, warps and lanes.
struct Schedule {
  /// Lanes of a warp that lie along k: all of them (K-major), or 32 * 4 / tile_rows (MN-major).
  int lanes;

  /// Warps of a block that share a row: a power of two (K-major), or all of them (MN-major).
  int warps;

  /// Rows of W in a tile, the number of tiles, the number of slices of K (1 if W is K-major), and k in a slice.
  int tile_rows, tiles, slices, slice_k;

  /// The device has programmatic dependent launch.
  bool dependent;
};

/// Enqueues the GEMM and returns a cudaError_t. With more than one slice, `workspace` holds (batches, tiles, slices,
/// COLS, tile_rows) floats. launch.cuh defines the function; instances.cu instantiates it for each kernel of list.h.
template <class Config>
Status launch(const Problem& p, const Schedule& s, void* workspace, Stream stream);

}  // namespace hgemm::simt_gemv
