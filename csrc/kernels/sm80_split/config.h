// What the host side of sm80_split (list.h, variants.cc) and its CUDA side share: configurations, the launcher.
#pragma once

#include "core/problem.h"
#include "tile/split_planes.h"

namespace hgemm::sm80_split {

/// The constants of a kernel: output tile (BM, BN) and k-tile BK of a block, and pipeline stages. A warp computes 32 x
/// 32 of the output tile, with three float32 registers per element.
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

/// Enqueues the kernel that splits the operands of a slab into planes, and then the GEMM. Returns a cudaError_t.
/// `memory` holds the planes (tile/split_planes.h). The problem is by rows. launch.cuh defines the function;
/// instances.cu instantiates it for each kernel of list.h.
template <class Config>
Status launch(const Problem& p, const tile::split::Memory& memory, Stream stream);

}  // namespace hgemm::sm80_split
