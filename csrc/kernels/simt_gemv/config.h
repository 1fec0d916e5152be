// What the host side of simt_gemv (list.h, variants.cc) and its CUDA side share: configurations, how a problem is
// scheduled, the launcher.
#pragma once

#include "core/problem.h"
#include "core/short_side.h"

namespace hgemm::simt_gemv {

constexpr int kWarps = 8, kThreads = 32 * kWarps;
constexpr int kBlocks = 2;              // that an SM has registers for
constexpr int kRowsK = 4;               // W K-major: rows of a warp, which all its lanes share
constexpr int kRowsMN = 128;            // MN-major: rows of a block, at most; each lane has four
constexpr int kMostLanesMN = 4;         // that lie along k
constexpr int kStepK = 4, kStepMN = 8;  // k that a lane takes at a time

/// What a kernel is made for: rows of x, loads in flight.
template <int COLS_, int DEPTH_>
struct Config {
  static constexpr int COLS = COLS_, DEPTH = DEPTH_;
  static constexpr int kSmemBytes = kWarps * COLS * kRowsMN * 4;

  static_assert(COLS >= 2 && COLS * kRowsMN % kThreads == 0);
};

/// How W is divided: into `tiles` of `tile_rows` rows, each, MN-major, into `slices` of `slice_k` k.
struct Schedule {
  int lanes;  // of a warp that lie along k: K-major all, MN-major 32 * 4 / tile_rows
  int warps;  // of a block that share a row; a power of two, MN-major all
  int tile_rows, tiles, slices, slice_k;
  bool dependent;  // the device has programmatic dependent launch
};

/// Enqueues the GEMM; `workspace` holds slices x tiles x COLS x tile_rows floats for each batch, if there are slices.
/// launch.cuh defines it, instances.cu instantiates it for each kernel of list.h.
template <class Config>
Status launch(const Problem& p, const Schedule& s, void* workspace, Stream stream);

}  // namespace hgemm::simt_gemv
