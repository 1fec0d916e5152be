// What the host side of sm80_split (list.h, variants.cc) and its CUDA side share: configurations, the launcher.
#pragma once

#include "core/problem.h"
#include "tile/split_planes.h"

namespace hgemm::sm80_split {

/// The constants of a kernel: output tile (BM, BN) and k-tile BK of a block, pipeline stages, and planes of an operand
/// (three of bfloat16, or two of float16). A warp computes 32 x 32 of the output tile, with three float32 registers per
/// element.
template <int BM_, int BN_, int STAGES_, int PLANES_ = tile::split::kPlanes>
struct Config {
  static constexpr int BM = BM_, BN = BN_, BK = 32, STAGES = STAGES_, WM = 32, WN = 32;
  static constexpr int kPlanes = PLANES_;
  static constexpr bool kScales = kPlanes == tile::split::kTwoPlanes;   // the planes hold multiples of the rows
  static constexpr int kLowBits = kScales ? tile::split::kLowBits : 0;  // see tile::split::add_rest()
  static constexpr int kWarps = BM / WM * (BN / WN), kThreads = kWarps * 32;
  static constexpr int kPlaneBytesA = BM * BK * 2, kPlaneBytesB = BN * BK * 2;
  static constexpr int kStageBytes = kPlanes * (kPlaneBytesA + kPlaneBytesB);
  static constexpr int kSmemBytes = STAGES * kStageBytes;
  // After the main loop, the ring has the sums of each warp on their way out, and behind them the Scales of each warp.
  static constexpr int kSumsBytes = kWarps * WM * 40 * 4;
  static constexpr int kScalesBytes =
      kScales ? kWarps * 2 * tile::split::kTermsOfRows * int{sizeof(tile::split::Scale)} : 0;
  static_assert(kSumsBytes + kScalesBytes <= kSmemBytes);
  static_assert(BM % WM == 0 && BN % WN == 0);
  static_assert(STAGES >= 3, "one stage is read, one is freed, the rest are in flight");
};

/// Enqueues the kernel that splits the operands of a slab into planes, and then the GEMM. Returns a cudaError_t.
/// `memory` holds the planes (tile/split_planes.h). The problem is by rows. launch.cuh defines the function;
/// instances.cu instantiates it for each kernel of list.h.
template <class Config>
Status launch(const Problem& p, const DeviceFacts& facts, const tile::split::Memory& memory, Stream stream);

}  // namespace hgemm::sm80_split
