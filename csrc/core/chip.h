// The GPU chips that this library knows, and properties that follow from a device's architecture.
#pragma once

#include <algorithm>

#include "core/problem.h"

namespace hgemm {

/// One chip and its rates, for the cost models. The table in chip.cc is the only place that lists chips. Decisions for
/// a device that is not in the machine take the facts from there.
struct Chip {
  /// The name of a GPU with this chip: "H200".
  const char* name = "";

  /// What CUDA reports for that GPU.
  DeviceFacts facts;

  /// The clock in GHz that the chip sustains in a large GEMM.
  double clock_ghz = 0;

  /// Floating-point operations per clock and SM of mma.sync with 16-bit operands and float32 accumulation. As in the
  /// two fields below, a multiply-add counts as two.
  double mma_flops = 0;

  /// The same of the chip's fastest tensor-core instruction for 16-bit operands: mma.sync, wgmma or tcgen05.
  double peak_flops = 0;

  /// The same of float32 FMA on CUDA cores.
  double simt_flops = 0;

  /// The DRAM bandwidth in GB/s that a read stream reaches. facts.dram_gbs is the peak.
  double dram_gbs = 0;

  /// One SM's share of the L2 bandwidth when all SMs read, in bytes per clock.
  double l2_bytes_per_clk = 0;

  /// This project measured the rates. On other chips the cost models only rank our own kernels against each other.
  bool measured = false;

  /// Some kernels are compiled for this chip alone (build_tools/archs.py).
  bool own_kernels = false;
};

/// The number of chips in the table.
int chip_count();

/// The chips in the order of their compute capabilities. Requires 0 <= index < chip_count().
const Chip& chip_at(int index);

/// The chip whose rates are used for a compute capability: the newest chip of the table that is not newer than `cc`,
/// and the A100 for anything older than all of them.
const Chip& chip_of(int cc);

/// Copies the facts of the chip with exactly this compute capability to `facts`. Returns false, and leaves `facts` as
/// it is, if the table has no such chip.
bool preset_facts(int cc, DeviceFacts* facts);

/// True if the table has a chip of exactly this compute capability and this project measured its rates. Only then can
/// the predictions for our kernels be compared with those for torch.
bool is_measured(int cc);

/// True if some kernels are compiled for chips of exactly this compute capability alone.
bool has_own_kernels(int cc);

/// True if the architecture has thread block clusters and programmatic dependent launch: sm_90 and newer.
constexpr bool has_clusters(int cc) {
  return cc >= 90;
}
constexpr bool has_dependent_launch(int cc) {
  return cc >= 90;
}

/// The number of clusters of `blocks` blocks that are resident at the same time, with one block per SM. A cluster of
/// more than two blocks needs SMs of one GPC, which leaves some SMs idle: on the H200, 30 clusters of four are resident
/// instead of 33.
constexpr int clusters_at_once(const DeviceFacts& facts, int blocks) {
  return std::max(1, blocks > 2 ? facts.sm_count * 10 / (11 * blocks) : facts.sm_count / blocks);
}

/// The DRAM bandwidth in GB/s that a read stream reaches on a device: the device's peak times the share of the peak
/// that its chip reaches. GPUs of one architecture differ most in their memory (H100: 3.35 TB/s, H200: 4.9 TB/s).
double dram_gbs(const DeviceFacts& facts);

/// The device's dram_gbs() divided by that of the H200, on which the rates in the lists of kernels were measured.
double dram_share(const DeviceFacts& facts);

}  // namespace hgemm
