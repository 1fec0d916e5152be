// Shared by the host side of sm90_split_skinny (list.h, variants.cc) and its CUDA side: configurations, the schedule of
// a problem, and the launcher.
#pragma once

#include <cstddef>

#include "core/problem.h"
#include "tile/split_planes.h"

namespace hgemm::sm90_split_skinny {

/// The compile-time parameters of a kernel: the rows of x in a tile, and the number of pipeline stages.
template <int COLS_, int STAGES_>
struct Config {
  static constexpr int ROWS = 128, COLS = COLS_, BK = 64, STAGES = STAGES_;  // ROWS: of W in a tile
  static constexpr int kPlanes = tile::split::kPlanes;
  static constexpr int kLine = 128;  // bytes of a line of a stage: 64 k of a plane of x, 32 elements of W
  static constexpr int kConsumerWarps = 8, kConsumerThreads = 32 * kConsumerWarps;  // two warpgroups
  static constexpr int kThreads = kConsumerThreads + 128;                           // with the producer's warpgroup
  // Arrivals that complete a phase of the mbarriers (the table in kernel.cuh).
  static constexpr int kFullArrivals = 1;                // of the producer thread, with the bytes to come
  static constexpr int kEmptyArrivals = kConsumerWarps;  // of each consumer warp
  static constexpr int kPlaneBytes = COLS * kLine;
  static constexpr int kStageBytesX = kPlanes * kPlaneBytes, kStageBytesW = ROWS * BK * 4;
  static constexpr int kStageBytes = kStageBytesX + kStageBytesW;
  // A warp's buffer in which the epilogue transposes sums: eight rows of x by 16 rows of W. The padding keeps its
  // accesses free of bank conflicts.
  static constexpr int kScratchRow = 20, kScratchBytes = 8 * kScratchRow * 4;
  static constexpr int kScratchAt = STAGES * kStageBytes + 2 * STAGES * 8;
  static constexpr int kSmemBytes = kScratchAt + kConsumerWarps * kScratchBytes;
  // Steps of 16 k whose planes of W are in registers at a time. 128 rows of x leave registers for one.
  static constexpr int kBuffers = COLS > 96 ? 1 : 2;
  static_assert(COLS % 8 == 0 && kSmemBytes <= 232448 && kScratchAt % 16 == 0);
};

/// How a problem is divided: into work tiles of `rows` by `cols` tiles of W and of x, and K into `slices` slices of
/// `steps` stages each, the last one what is left.
struct Schedule {
  int rows, cols, slices, steps;

  /// Bytes of the slices' partial sums, and the number of counters, one for each warp's part of a tile.
  size_t sums_bytes(int64_t batches, const Tile& tile) const {
    if (slices == 1) return 0;
    return sizeof(float) * slices * static_cast<size_t>(int64_t{rows} * cols * batches) * tile.bm * tile.bn;
  }
  int64_t counters(int64_t batches) const { return slices == 1 ? 0 : int64_t{rows} * cols * batches * 8; }
};

/// Enqueues the kernel that makes the planes of x, and the GEMM. `workspace` has the planes, the partial sums and the
/// counters, in this order. launch.cuh defines the function, instances.cu instantiates it for each kernel of list.h.
template <class Config>
Status launch(const Problem& p, const DeviceFacts& facts, const Schedule& s, void* workspace, Stream stream);

}  // namespace hgemm::sm90_split_skinny
