// The kernels of grouped products in float32, one line each: this is where a kernel is declared. Each of them takes
// every form of a grouped product, and operands of any strides. dispatch/grouped.cc chooses by the rows of a group.
#pragma once

#include <tuple>

#include "core/problem.h"

namespace hgemm::simt_grouped {

/// The constants of a kernel: output tile (BM, BN) and k-tile BK of a block, the part (TM, TN) of the output tile that
/// a thread computes, and pipeline stages. The threads of a warp compute four parts along M and eight along N.
template <int BM_, int BN_, int BK_, int TM_, int TN_, int STAGES_, int kBlocks_>
struct Config {
  static constexpr int kBlocks = kBlocks_;
  static constexpr int BM = BM_, BN = BN_, BK = BK_, TM = TM_, TN = TN_, STAGES = STAGES_;
  static constexpr int kThreads = BM / TM * (BN / TN), kWarpsM = BM / TM / 4;
  // Row pitches in floats: stores of four rows of a K-major operand by eight k do not conflict in the banks.
  static constexpr int kPitchA = BM + 4, kPitchB = BN + 4;
  static constexpr int kStageFloats = BK * (kPitchA + kPitchB);
  static constexpr int kSmemBytes = STAGES * kStageFloats * 4;
  static_assert(TM % 4 == 0 && TN % 4 == 0 && BM % (4 * TM) == 0 && BN % (8 * TN) == 0);
  static_assert(BK % 8 == 0 && kCarriedK % BK == 0 && STAGES >= 2);
  static_assert(BM * BK % kThreads == 0 && BN * BK % kThreads == 0 && kThreads % BN == 0 && kThreads % BM == 0);
};

/// The names in reports, in the order of the list.
constexpr const char* kNames[] = {"simt_grouped_16x128", "simt_grouped_32x128", "simt_grouped_64x128"};

template <class Config_>
struct Kernel {
  using Config = Config_;
};

constexpr std::tuple kKernels{
    Kernel<Config<16, 128, 32, 4, 4, 3, 1>>{},  // few rows a group
    Kernel<Config<32, 128, 32, 8, 4, 3, 3>>{},
    Kernel<Config<64, 128, 32, 8, 8, 3, 1>>{},
};

}  // namespace hgemm::simt_grouped
