// The chips that this library knows, and what depends on a device's architecture.
#pragma once

#include <algorithm>

#include "core/problem.h"

namespace hgemm {

/// One chip. This table is the only place that lists chips: cost models take their rates from it, and decisions for a
/// device that is not in the machine take its facts.
struct Chip {
  const char* name = "";
  DeviceFacts facts;            // of a device with this chip, as CUDA would report them
  double clock_ghz = 0;         // sustained in a large GEMM
  double mma_flops = 0;         // per clock and SM: mma.sync, 16-bit inputs, float32 accumulation
  double peak_flops = 0;        // per clock and SM: the chip's widest 16-bit tensor instruction (wgmma, tcgen05)
  double simt_flops = 0;        // per clock and SM: float32 FMA
  double dram_gbs = 0;          // what a read stream gets of facts.dram_gbs
  double l2_bytes_per_clk = 0;  // one SM's share when all of them read
  bool measured = false;     // by this project. On other chips the models only rank our own kernels against each other.
  bool own_kernels = false;  // Some kernels are compiled for this chip alone (build_tools/archs.py).
};

int chip_count();

/// The chips in the order of their compute capabilities. Requires 0 <= index < chip_count().
const Chip& chip_at(int index);

/// The chip that stands for a compute capability: the newest one that is not newer (the A100 below all).
const Chip& chip_of(int cc);

/// The facts of the chip with exactly this compute capability. Returns false, and leaves `facts` alone, where the table
/// has none.
bool preset_facts(int cc, DeviceFacts* facts);

/// Whether the chip's constants rest on measurements, and with them a comparison of our models with torch's.
bool is_measured(int cc);

bool has_own_kernels(int cc);

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
double dram_gbs(const DeviceFacts& facts);

/// The device's DRAM bandwidth over that of the chip on which the rates in the lists of kernels were measured.
double dram_share(const DeviceFacts& facts);

}  // namespace hgemm
