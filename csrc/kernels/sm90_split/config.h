// Shared by the host side of sm90_split (list.h, variants.cc) and its CUDA side: configurations, the schedule of a
// problem, and the launcher.
#pragma once

#include <cstddef>

#include "core/problem.h"
#include "tile/split_planes.h"

namespace hgemm::sm90_split {

/// The compile-time parameters of a kernel: columns of its tile, number of pipeline stages, blocks of a cluster along
/// M, planes of an operand (three of bfloat16, or two of float16).
template <int BN_, int STAGES_, int CM_, int PLANES_ = tile::split::kPlanes>
struct Config {
  static constexpr int BM = 128, BN = BN_, BK = 64, STAGES = STAGES_, CM = CM_;
  static constexpr int kPlanes = PLANES_, kPlane = BK * 2;  // bytes of a plane's row in a stage: one line of 128
  static constexpr bool kScales = kPlanes == tile::split::kTwoPlanes;   // the planes hold multiples of the rows
  static constexpr int kLowBits = kScales ? tile::split::kLowBits : 0;  // see tile::split::add_rest()
  static constexpr int kWarpgroupThreads = 128;
  static constexpr int kConsumerThreads = 2 * kWarpgroupThreads;
  static constexpr int kThreads = kConsumerThreads + kWarpgroupThreads;  // with the producer's
  // Arrivals that complete a phase of the mbarriers (the table in kernel.cuh).
  static constexpr int kFullArrivals = 1;                            // of the producer thread, with the bytes to come
  static constexpr int kEmptyArrivals = kConsumerThreads / 32 * CM;  // of each consumer warp, in each block
  static constexpr int kStageBytesA = kPlanes * BM * kPlane, kStageBytesB = kPlanes * BN * kPlane;
  static constexpr int kStageBytes = kStageBytesA + kStageBytesB;
  // Each consumer warp's Scales (tile/split_scaled.cuh), and then its results on their way to D.
  static constexpr int kScratchBytes =
      kScales ? 2 * tile::split::kTermsOfRows * int{sizeof(tile::split::Scale)} : 8 * 40 * 4;
  static constexpr int kScratchAt = (STAGES * kStageBytes + 2 * STAGES * 8 + 15) / 16 * 16;
  static constexpr int kSmemBytes = kScratchAt + kConsumerThreads / 32 * kScratchBytes;
  static_assert(BN % 64 == 0 && BN <= 128, "sums and accumulators share a consumer's registers");
  static_assert(CM <= 2 && BN / CM % 8 == 0);
  static_assert(kSmemBytes <= 232448);
};

constexpr int kConsumerWarps = 8;

/// How K is divided. The last `rest` work tiles (each the output tiles of one cluster), which do not fill a wave, are
/// split into `slices` slices of K. A slice has `steps` stages, the last one what is left. The other tiles are not
/// split. Behind the planes the workspace holds the partial sums of the `tiles` split output tiles, one slice after the
/// other, and a counter for each warp's part of such a tile.
struct Schedule {
  int rest, slices, steps;
  int tiles;  // output tiles of blocks, those beyond D included

  size_t sums_bytes(const Tile& tile) const {
    return sizeof(float) * slices * static_cast<size_t>(tiles) * tile.bm * tile.bn;
  }
  int counters() const { return tiles * kConsumerWarps; }
};

/// Enqueues the kernel that makes the planes, and the GEMM, for a slab of a problem that is by rows. `memory` has the
/// planes (tile/split_planes.h), and behind them the sums and counters. launch.cuh defines the function, instances.cu
/// instantiates it for each kernel of list.h.
template <class Config>
Status launch(const Problem& p, const DeviceFacts& facts, const Schedule& s, const tile::split::Memory& memory,
              Stream stream);

}  // namespace hgemm::sm90_split
