// What the list of sm80_split kernels (variants.cc) and their CUDA side share: configurations and launchers.
#pragma once

#include "core/problem.h"
#include "tile/split_planes.h"

namespace hgemm::sm80_split {

/// The shape of a block: one line of list.inc. A warp has 32 x 32 of the tile: three float32 registers an element.
template <int BM_, int BN_, int STAGES_>
struct Config {
  static constexpr int BM = BM_, BN = BN_, BK = 32, STAGES = STAGES_, WM = 32, WN = 32;
  static constexpr int kThreads = BM / WM * (BN / WN) * 32;
  static constexpr int kPlaneBytesA = BM * BK * 2, kPlaneBytesB = BN * BK * 2;
  static constexpr int kStageBytes = tile::split::kPlanes * (kPlaneBytesA + kPlaneBytesB);
  static constexpr int kSmemBytes = STAGES * kStageBytes;
  static_assert(BM * BN / 32 * 40 * 4 <= kSmemBytes, "sums on their way out lie in the ring");
  static_assert(BM % WM == 0 && BN % WN == 0);
  static_assert(STAGES >= 3, "one stage is read, one is freed, the rest are in flight");
};

/// Enqueues the pass that makes planes, and the GEMM. `workspace`: tile/split_planes.h.
#define SM80_SPLIT(BM, BN, STAGES, RATE) \
  HGEMM_IN_CUDA(launch_##BM##x##BN##x32_s##STAGES(const Problem&, void* workspace, Stream))
#include "kernels/sm80_split/list.inc"
#undef SM80_SPLIT

}  // namespace hgemm::sm80_split
