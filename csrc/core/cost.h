// The analytic cost model of a tiled GEMM: wave quantisation, main loop rates and DRAM traffic. sm80_mma predicts its
// times by it; other families use parts of it.
#pragma once

#include <algorithm>

#include "core/ceil_div.h"
#include "core/chip.h"
#include "core/problem.h"

namespace hgemm {

/// A tiled kernel, as the cost model sees it.
struct TileCost {
  Tile tile;

  /// Blocks (CTAs) that are resident on an SM at the same time.
  int ctas_per_sm = 1;

  /// Floating-point operations per clock of one SM with all of these blocks resident, in the main loop's steady state.
  double flops_per_clk = 0;

  /// Slices of K, each computed by a block of its own. Above one, the float32 partial sums go through the workspace.
  int splits = 1;
};

/// The number of blocks (CTAs) of a kernel that fit on one SM at a time, at least 1: its occupancy by shared memory,
/// registers and threads. CUDA reserves 1 KB of shared memory per block.
inline int resident_ctas(const DeviceFacts& facts, int smem_bytes, int threads, int registers_per_thread) {
  const int max_threads = facts.cc == 86 || facts.cc == 89 ? 1536 : 2048;
  const int by_smem = facts.smem_per_sm / (smem_bytes + 1024);
  const int by_registers = 65536 / (registers_per_thread * threads);
  return std::max(1, std::min({by_smem, by_registers, max_threads / threads}));
}

/// Bytes that must cross DRAM: operands and results. A matrix that is broadcast over the batch counts once.
inline double dram_bytes(const Problem& p) {
  const auto distinct = [&p](const Matrix& x) {
    return static_cast<double>((x.batch_stride[0] == 0 ? 1 : p.batch[0]) * (x.batch_stride[1] == 0 ? 1 : p.batch[1]));
  };
  const double m = static_cast<double>(p.m), n = static_cast<double>(p.n), k = static_cast<double>(p.k);
  const double results = m * n * static_cast<double>(p.batches());
  double bytes = (m * k * distinct(p.a) + k * n * distinct(p.b)) * dtype_bytes(p.dtype);
  bytes += results * dtype_bytes(p.out_dtype) * (p.pre_activation ? 2 : 1);
  if (p.c.data) {
    const double rows = p.c.row_stride == 0 ? 1 : m, cols = p.c.col_stride == 0 ? 1 : n;
    bytes += rows * cols * distinct(p.c) * dtype_bytes(p.c_dtype);
  }
  return bytes;
}

/// Whether the problem is a batch of many tiny products. Time is then a matter of each matrix: cuBLAS's, and that of
/// kernels which were made for larger ones, has its own measurements.
inline bool is_tiny_batch(const Problem& p) {
  constexpr int64_t kMostExtent = 32, kLeastBatch = 1000;
  return std::max({p.m, p.n, p.k}) <= kMostExtent && p.batches() >= kLeastBatch;
}

/// Whether the problem is a batch of many small matrices, each times a vector.
inline bool is_vector_batch(const Problem& p) {
  constexpr int64_t kMostElements = 16384, kLeastBatch = 1000;
  return std::min(p.m, p.n) == 1 && std::max(p.m, p.n) * p.k <= kMostElements && p.batches() >= kLeastBatch;
}

/// Whether all problems of a batch have one operand in common.
inline bool shares_operand(const Problem& p) {
  const auto is_one = [](const Matrix& x) { return x.batch_stride[0] == 0 && x.batch_stride[1] == 0; };
  return is_one(p.a) || is_one(p.b);
}

namespace cost {
// Times in microseconds.
constexpr double kLaunchUs = 2.6;    // a kernel in a CUDA graph: start, ramp-up and drain
constexpr double kLatencyUs = 0.9;   // latency of a load from global to shared memory
constexpr double kEpilogueUs = 0.8;  // the barriers around the stores
// Address arithmetic and shared-memory traffic of an output tile's stores, per thousand elements. Rows of D that do not
// start on 16 bytes cost more.
constexpr double kStoreUs = 0.12;
constexpr double kUnalignedStoreUs = 0.5;
// The share of the read bandwidth that a GEMM reaches. cuBLAS reaches 0.89 with weights that it reads once.
constexpr double kStreamShare = 0.85;
}  // namespace cost

/// Returns the predicted time of the GEMM in microseconds. Full waves run at the steady rate. The last wave has fewer
/// blocks per SM, and runs at the rate that these reach. One k-tile of the main loop takes the longest of three times:
/// its math, its bytes from L2, and the load latency that the pipeline stages do not hide.
inline double tiled_gemm_us(const Problem& p, const DeviceFacts& facts, const TileCost& kernel) {
  const Chip& chip = chip_of(facts.cc);
  const Tile& t = kernel.tile;
  const double clk_per_us = chip.clock_ghz * 1e3;

  const double steps = static_cast<double>(ceil_div(ceil_div(p.k, t.bk), kernel.splits));
  const int64_t tiles = ceil_div(p.m, t.bm) * ceil_div(p.n, t.bn) * p.batches() * kernel.splits;

  const double rows = static_cast<double>(std::min<int64_t>(t.bm, p.m));
  const double cols = static_cast<double>(std::min<int64_t>(t.bn, p.n));
  const double step_flops = 2.0 * t.bm * t.bn * t.bk;
  const double step_bytes = (rows + cols) * t.bk * dtype_bytes(p.dtype);
  const double latency_us = cost::kLatencyUs / std::max(1, t.stages - 1);
  const double tile_out_bytes = rows * cols * (kernel.splits > 1 ? 4 : dtype_bytes(p.out_dtype));
  const double feed = chip.l2_bytes_per_clk * clk_per_us;
  const double stores_us = 1e-3 * t.bm * t.bn * (alignment_d(p) >= 16 ? cost::kStoreUs : cost::kUnalignedStoreUs);
  const double edges_us = cost::kLatencyUs + cost::kEpilogueUs + stores_us;
  const auto wave_us = [&](int resident) {
    // With fewer blocks than fit, latencies are not hidden.
    const double share = kernel.ctas_per_sm == 1 ? 1.0 : 0.5 + 0.5 * resident / kernel.ctas_per_sm;
    const double math = resident * step_flops / (kernel.flops_per_clk * share * clk_per_us);
    const double loads = resident * step_bytes / feed;
    const double steady = steps * std::max({math, loads, latency_us}) + resident * tile_out_bytes / feed;
    if (kernel.ctas_per_sm == 1) return steady + edges_us;
    // Another block on the SM hides most of a block's pipeline fill and epilogue, unless K is so short that the block
    // does little else.
    const double alone = edges_us + steps * std::max(math / resident, latency_us);
    return std::max(steady + 0.3 * edges_us, alone);
  };
  const int64_t slots = static_cast<int64_t>(facts.sm_count) * kernel.ctas_per_sm;
  const int64_t full = tiles / slots, rest = tiles % slots;
  const int last = static_cast<int>((rest + facts.sm_count - 1) / facts.sm_count);
  const double sm_us = static_cast<double>(full) * wave_us(kernel.ctas_per_sm) + (rest > 0 ? wave_us(last) : 0.0);

  const double dram_us = dram_bytes(p) / (dram_gbs(facts) * 1e3 * cost::kStreamShare);
  double us = cost::kLaunchUs + std::max(sm_us, dram_us);
  if (kernel.splits > 1) {
    // The partial sums are read back once, mostly from L2, and the blocks that arrive last wait for each other.
    const double partial = 4.0 * static_cast<double>(p.m) * p.n * p.batches() * kernel.splits;
    us += 1.5 + partial / (feed * facts.sm_count);
  }
  return us;
}

}  // namespace hgemm
