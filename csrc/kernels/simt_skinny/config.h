// What the host side of simt_skinny (list.h, variants.cc) and its CUDA side share: configurations, how a problem is
// scheduled, the launcher.
#pragma once

#include "core/problem.h"
#include "core/short_side.h"

namespace hgemm::simt_skinny {

constexpr int kWarps = 8, kThreads = 32 * kWarps;

/// What a kernel is made for: rows of x, stages of the ring, blocks of an SM.
template <int COLS_, int STAGES_, int BLOCKS_>
struct Config {
  static constexpr int COLS = COLS_, STAGES = STAGES_, BLOCKS = BLOCKS_;
};

/// A block's part of W, and how its warps share the products with x: WN lie side by side along the rows of W, the
/// others, WK, along the k of a stage. A warp's lanes are GM x GN x LK: along x's rows, W's rows and k. A lane owns
/// TM x TN sums, of x's rows GM apart, and takes four k at a time.
template <class Config_, Major kMajor_>
struct Layout : Config_ {
  static constexpr int COLS = Config_::COLS, STAGES = Config_::STAGES;
  static constexpr Major kMajor = kMajor_;  // of W
  static constexpr bool kKMajor = kMajor == Major::kK;
  static constexpr int BN = kKMajor ? 64 : 128, BK = kKMajor ? 64 : 32;  // W: a row of a stage is 256 or 512 bytes
  static constexpr int TM = COLS % 6 == 0 ? 6 : COLS < 8 ? COLS : 8, TN = COLS <= 8 ? 4 : 8;
  static constexpr int GM = COLS / TM;
  // MN-major, all lanes lie along W's rows: no sums to exchange. K-major, many lanes along k share few rows of W, and
  // many along W's rows few k of x: what a warp reads of shared memory is least where both are alike.
  static constexpr int GN = kKMajor ? (COLS < 8 ? 2 : 4) : 32 / GM;
  static constexpr int LK = 32 / (GM * GN);
  static constexpr int WN = BN / (GN * TN), WK = kWarps / WN;
  static constexpr int kSlab = 4 * LK;  // k of a warp at a time
  static constexpr int kSlabs = BK / (WK * kSlab);
  static constexpr int kStepK = kKMajor || TN == 4 ? 4 : 2;  // k of W in registers
  // Rows of shared memory: what the lanes of a quarter of a warp read lies in different banks.
  static constexpr int kPad = LK < 8 ? 4 * LK : 0;
  static constexpr int kPitchX = BK + kPad, kPitchW = kKMajor ? BK + kPad : BN, kPitchSums = BN + 8;
  static constexpr int kStageW = (kKMajor ? BN : BK) * kPitchW, kStage = kStageW + COLS * kPitchX;  // floats
  static constexpr int kRing = STAGES * kStage, kSums = WK * COLS * kPitchSums;  // one after the other
  static constexpr int kSmemBytes = (kRing > kSums ? kRing : kSums) * 4;
  static_assert(GM * TM == COLS && GM * GN * LK == 32, "lanes of a warp");
  static_assert(WN * GN * TN == BN && WN * WK == kWarps && kSlabs * WK * kSlab == BK, "warps of a block");
  static_assert(kKMajor || LK == 1);
};

/// How W is divided: into `tiles` of `tile_rows` (Layout::BN), each into `slices` of `slice_k` k.
struct Schedule {
  int tile_rows, tiles, slices, slice_k;
  bool dependent;  // the device has programmatic dependent launch
};

/// Enqueues the GEMM; `workspace` holds slices x tiles x COLS x BN floats for each batch, if there are slices.
/// launch.cuh defines it, instances.cu instantiates it for each kernel of list.h.
template <class Config>
Status launch(const Problem& p, const Schedule& s, void* workspace, Stream stream);

}  // namespace hgemm::simt_skinny
