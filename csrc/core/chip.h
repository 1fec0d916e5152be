// The chips, and what of them depends on the architecture. Rates, which cost models need: H200: measured on one, at
// fixed power. The rest: public datasheets, unmeasured.
#pragma once

#include <algorithm>

#include "core/problem.h"

namespace hgemm {

struct Chip {
  int cc;
  const char* name;
  double clock_ghz;         // sustained in a large GEMM
  double mma_flops;         // per clock and SM: mma.sync, 16-bit inputs, fp32 accumulation
  double peak_flops;        // per clock and SM: the chip's widest 16-bit tensor instruction (wgmma, tcgen05)
  double simt_flops;        // per clock and SM: fp32 FMA
  int64_t dram_peak_gbs;    // by its memory's clock and width
  double dram_gbs;          // of that a read stream gets
  double l2_bytes_per_clk;  // one SM's share when all of them read
  bool measured;            // by this project; where not, models only rank our own kernels against each other
  bool own_kernels;         // some are compiled for it alone (build_tools/archs.py)
};

// cuBLAS holds 600-690 TFLOP/s on the H200: the clock under that load, not the boost clock, is what a model needs.
// mma.sync reaches 62 % of wgmma's rate on Hopper; its rate on Blackwell is a guess from there.
constexpr Chip kChips[] = {
    {80, "A100", 1.41, 2048, 2048, 128, 1555, 1400, 48, false, false},
    {86, "A10", 1.69, 1024, 1024, 256, 600, 550, 48, false, false},
    {89, "L40S", 2.25, 1024, 1024, 256, 864, 780, 48, false, false},
    {90, "H200", 1.55, 2540, 4096, 256, 4916, 4600, 56, true, true},
    {100, "B200", 1.70, 2540, 8192, 256, 8000, 7000, 56, false, false},
};

/// The chip that stands for a compute capability: the newest one that is not newer (the A100 below all).
constexpr const Chip& chip_of(int cc) {
  const Chip* best = &kChips[0];
  for (const Chip& chip : kChips) {
    if (chip.cc <= cc) best = &chip;
  }
  return *best;
}

/// Whether the chip's constants, and so a comparison of our models with torch's, rest on measurements.
constexpr bool is_measured(int cc) {
  const Chip& chip = chip_of(cc);
  return chip.measured && chip.cc == cc;
}

constexpr bool has_own_kernels(int cc) {
  const Chip& chip = chip_of(cc);
  return chip.own_kernels && chip.cc == cc;
}

/// What sm_90 brought, and newer architectures have.
constexpr bool has_clusters(int cc) {
  return cc >= 90;
}
constexpr bool has_dependent_launch(int cc) {
  return cc >= 90;
}

/// Clusters of so many blocks that run at the same time, a block to an SM. Those of more than two need SMs of one GPC:
/// on the H200 30 of 33 clusters of four find room.
constexpr int clusters_at_once(const DeviceFacts& facts, int blocks) {
  return std::max(1, blocks > 2 ? facts.sm_count * 10 / (11 * blocks) : facts.sm_count / blocks);
}

/// What a read stream gets of a device's DRAM: its chip's share of the peak. GPUs of one architecture differ in their
/// memory more than in all else (H100 and H200: 3.35 and 4.9 TB/s).
constexpr double dram_gbs(const DeviceFacts& facts) {
  const Chip& chip = chip_of(facts.cc);
  const double peak = static_cast<double>(chip.dram_peak_gbs);
  return facts.dram_gbs > 0 ? chip.dram_gbs * static_cast<double>(facts.dram_gbs) / peak : chip.dram_gbs;
}

/// The chip on which the rates in the lists of kernels were measured.
constexpr int kRatedCc = 90;
/// DRAM's speed, of that chip's.
constexpr double dram_share(const DeviceFacts& facts) {
  return dram_gbs(facts) / chip_of(kRatedCc).dram_gbs;
}

}  // namespace hgemm
