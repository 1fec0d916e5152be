// What the host side of sm90_split (list.h, variants.cc) and its CUDA side share: configurations, how a problem is
// scheduled, the launcher.
#pragma once

#include <cstddef>

#include "core/problem.h"

namespace hgemm::sm90_split {

/// What a kernel is made for: columns of its tile, ring depth, blocks of a cluster.
template <int BN_, int STAGES_, int CM_>
struct Config {
  static constexpr int BM = 128, BN = BN_, BK = 64, STAGES = STAGES_, CM = CM_;
  static constexpr int kPlanes = 3, kPlane = BK * 2;  // bytes of a plane's row in a stage: one line of 128
  static constexpr int kWarpgroupThreads = 128;
  static constexpr int kConsumerThreads = 2 * kWarpgroupThreads;
  static constexpr int kThreads = kConsumerThreads + kWarpgroupThreads;  // and the producer's
  // Arrivals that complete a phase of the mbarriers (the table in kernel.cuh).
  static constexpr int kFullArrivals = 1;                            // the producer thread's, with the bytes to come
  static constexpr int kEmptyArrivals = kConsumerThreads / 32 * CM;  // a warp's that has read the stage, of each block
  static constexpr int kStageBytesA = kPlanes * BM * kPlane, kStageBytesB = kPlanes * BN * kPlane;
  static constexpr int kStageBytes = kStageBytesA + kStageBytesB;
  static constexpr int kScratchAt = (STAGES * kStageBytes + 2 * STAGES * 8 + 15) / 16 * 16;  // of sums on their way out
  static constexpr int kSmemBytes = kScratchAt + 8 * 8 * 40 * 4;
  static_assert(BN % 64 == 0 && BN <= 128, "sums and accumulators share a consumer's registers");
  static_assert(CM <= 2 && BN / CM % 8 == 0);
  static_assert(kSmemBytes <= 232448);
};

constexpr int kConsumerWarps = 8;

/// How K is divided. The last `rest` clusters' tiles, those that do not fill a wave, have `slices` slices of `steps`
/// stages each, and the last slice what is left. The other tiles have all of K. The workspace holds, behind the planes,
/// the partial sums of these `tiles`, one slice after the other, and a counter for each warp that has sums of a tile.
struct Schedule {
  int rest, slices, steps;
  int tiles;  // of single blocks, those beyond D included

  size_t sums_bytes(const Tile& tile) const {
    return sizeof(float) * slices * static_cast<size_t>(tiles) * tile.bm * tile.bn;
  }
  int counters() const { return tiles * kConsumerWarps; }
};

/// Enqueues the pass that makes planes, and the GEMM. `workspace`: planes (tile/split_planes.h), sums, counters.
/// launch.cuh defines it, instances.cu instantiates it for each kernel of list.h.
template <class Config>
Status launch(const Problem& p, const DeviceFacts& facts, const Schedule& s, void* workspace, Stream stream);

}  // namespace hgemm::sm90_split
