// Float32 GEMM on tensor cores for sm_80 and newer: mma.sync on planes of each operand, three of bfloat16 or two of
// float16 (tile/split_planes.h).
//
// The summation is the same as in sm90_split (its kernel.cuh gives the reasons). One accumulator takes 64 k (32 k of
// two planes before sm_90, NOTES.md) of the product of the first planes and is then added to a sum in a float32
// register. A second register beside each sum takes the other products of planes, five of nine or two of four, and the
// rounding errors of the sum.
//
// A block computes a (BM, BN) output tile with a pipeline of stages that cp.async fills, as in sm80_mma. A stage holds
// all planes of both operands. They are K-major, whatever the memory order of the operands.
//
// As in sm90_split, a kernel over two planes sets the flag `inaccurate` where a result is not accurate
// (tile/split_scaled.cuh). The kernel over three planes that follows in the stream then computes all results again, and
// otherwise leaves at once.
#pragma once

#include <cstdint>
#include <utility>

#include "kernels/sm80_split/config.h"
#include "ptx/cp_async.cuh"
#include "ptx/dependent_launch.cuh"
#include "ptx/mma.cuh"
#include "ptx/smem_addr.cuh"
#include "tile/raster.h"
#include "tile/smem_operand.cuh"
#include "tile/split_product.cuh"
#include "tile/split_scaled.cuh"
#include "tile/triangle.h"

namespace hgemm::sm80_split {

namespace split = tile::split;

/// The planes of an operand: (matrices, planes, rows, ld) elements of 16 bits. A plane has `plane` elements, rows * ld.
struct PlanesParams {
  const uint16_t* planes;
  int64_t plane, ld;
};

/// The run-time parameters.
struct Params {
  PlanesParams a, b;
  split::Product product;
  split::Scaled scaled_a, scaled_b;  // of kernels over two planes
  unsigned* inaccurate;              // see split::Memory
  tile::Raster raster;
  tile::Triangle triangle;  // in place of `raster`, if `is_triangle`
  bool is_triangle;
};

constexpr int kCarryTiles = 32;  // k-tiles (of 32) from one carry to the next

/// K-tiles after which the accumulator is added to the sum in a register. Tensor cores before Hopper truncate the sum
/// of 22-bit products after every 8 of K, and not after every 16. With two planes they therefore add up half as much.
template <class Config>
__device__ __forceinline__ constexpr int alone_tiles() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
  return Config::kScales ? 1 : 2;
#else
  return 2;
#endif
}

/// The copies of an operand's planes to shared memory, and the loads of a warp's fragments from there.
/// EXTENT is BM or BN.
template <class Config, int EXTENT>
struct PlanesOperand {
  static constexpr int kPlanes = Config::kPlanes, kBlocks = 2;  // blocks of 16 rows in a warp's 32
  using Smem = tile::SmemOperand<EXTENT, Config::BK, Major::kK>;
  using Copy = typename Smem::template Copy<uint16_t, Config::kThreads, false>;
  using Fragments = uint32_t[kPlanes][kBlocks][4];

  Copy copies[kPlanes];

  __device__ __forceinline__ PlanesOperand(const PlanesParams& p, int64_t matrix, int row, int rows)
      : PlanesOperand(p, matrix * kPlanes, row, rows, std::make_integer_sequence<int, kPlanes>{}) {}
  /// Starts copying the next k-tile of all planes to the stage at shared address `stage`.
  __device__ __forceinline__ void fetch(uint32_t stage) {
#pragma unroll
    for (int plane = 0; plane < kPlanes; ++plane) copies[plane].fetch(stage + plane * Copy::kBytes);
  }
  /// Loads the fragments of k16 step `step`. `lane`: this lane's offset, from Smem::lane_offset.
  static __device__ __forceinline__ void load(Fragments& to, uint32_t stage, uint32_t lane, int step) {
#pragma unroll
    for (int plane = 0; plane < kPlanes; ++plane) {
#pragma unroll
      for (int i = 0; i < kBlocks; ++i) {
        Smem::load(to[plane][i], stage + plane * Copy::kBytes + Smem::at(lane, i, step));
      }
    }
  }

 private:
  template <int... kOffsets>
  __device__ __forceinline__ PlanesOperand(const PlanesParams& p, int64_t first, int row, int rows,
                                           std::integer_sequence<int, kOffsets...>)
      : copies{copy(p, first + kOffsets, row, rows)...} {}
  static __device__ __forceinline__ Copy copy(const PlanesParams& p, int64_t plane, int row, int rows) {
    return Copy(p.planes + plane * p.plane, p.ld, row, 0, rows, static_cast<int>(p.ld), true);
  }
};

template <class Config>
__global__ void __launch_bounds__(Config::kThreads) kernel(const __grid_constant__ Params p) {
  constexpr int BM = Config::BM, BN = Config::BN, STAGES = Config::STAGES, kSteps = Config::BK / 16;
  constexpr int MI = Config::WM / 16, NJ = Config::WN / 8, kCount = Config::WN / 2;
  using A = PlanesOperand<Config, BM>;
  using B = PlanesOperand<Config, BN>;
  using Pairs = split::Pairs<Config::kPlanes>;
  extern __shared__ __align__(1024) unsigned char smem[];  // STAGES x { A's planes, B's }
  const uint32_t smem_base = ptx::smem_addr(smem);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  constexpr int kWarpsM = BM / Config::WM;
  const int warp_m = warp % kWarpsM * Config::WM, warp_n = warp / kWarpsM * Config::WN;
  ptx::grid_launch_dependents();
  ptx::grid_dependency_wait();
  if (!Config::kScales && split::has_nothing_to_do(p.inaccurate)) return;

  const split::Product& product = p.product;
  const tile::RasterUnit unit =
      p.is_triangle ? tile::unit_at(p.triangle, blockIdx.x) : tile::unit_at(p.raster, blockIdx.x);
  const uint32_t outer = product.batch_inner.quotient(unit.batch);
  const split::Work work{static_cast<int>(unit.row) * BM, static_cast<int>(unit.col) * BN, static_cast<int>(outer),
                         static_cast<int>(unit.batch - outer * product.batch_inner.divisor())};
  A a(p.a, split::matrix_of(product.a, work), work.m0, product.a.rows);
  B b(p.b, split::matrix_of(product.b, work), work.n0, product.b.rows);
  const auto stage_a = [&](int stage) { return smem_base + stage * Config::kStageBytes; };
  const auto stage_b = [&](int stage) { return stage_a(stage) + Config::kPlanes * Config::kPlaneBytesA; };
  const auto fetch = [&](int stage) {
    a.fetch(stage_a(stage));
    b.fetch(stage_b(stage));
    ptx::cp_async_commit();
  };

  // As in sm80_mma, an A fragment consists of the 8x8 matrices at (m 0, k 0), (m 8, k 0), (m 0, k 8), (m 8, k 8), and
  // two B fragments side by side of those at (n 0, k 0), (n 0, k 8), (n 8, k 0), (n 8, k 8).
  const uint32_t lane_a = A::Smem::lane_offset(warp_m, lane / 8 % 2, lane / 16);
  const uint32_t lane_b = B::Smem::lane_offset(warp_n, lane / 16, lane / 8 % 2);
  typename A::Fragments frag_a[2];
  typename B::Fragments frag_b[2];
  const auto load_fragments = [&](int buffer, int stage, int step) {
    A::load(frag_a[buffer], stage_a(stage), lane_a, step);
    B::load(frag_b[buffer], stage_b(stage), lane_b, step);
  };

  // `alone` is the accumulator of the first planes' product, `high` the sum that takes it, and `low` the register
  // beside the sum.
  float high[MI][kCount] = {}, low[MI][kCount] = {}, alone[MI][kCount] = {};
  // Adds the product of a pair of planes to `sums`.
  const auto multiply = [&](float (&sums)[MI][kCount], int buffer, const int (&pair)[2]) {
#pragma unroll
    for (int j = 0; j < NJ; ++j) {
#pragma unroll
      for (int i = 0; i < MI; ++i) {
        const uint32_t (&right)[4] = frag_b[buffer][pair[1]][j / 2];
        ptx::Mma<typename Pairs::Element>::m16n8k16(reinterpret_cast<float (&)[4]>(sums[i][j * 4]),
                                                    frag_a[buffer][pair[0]][i], right[j % 2 * 2], right[j % 2 * 2 + 1]);
      }
    }
  };
  const auto carry = [&] {
#pragma unroll
    for (int i = 0; i < MI * kCount; ++i) {
      split::carry_low<Config::kLowBits>(high[i / kCount][i % kCount], low[i / kCount][i % kCount]);
    }
  };

#pragma unroll
  for (int s = 0; s < STAGES - 1; ++s) fetch(s);
  ptx::cp_async_wait<STAGES - 2>();
  __syncthreads();
  load_fragments(0, 0, 0);

  constexpr Pairs kPairs{};
  constexpr int kAloneTiles = alone_tiles<Config>();
  const int k_tiles = (product.k + Config::BK - 1) / Config::BK;
  int stage = 0, next_stage = 1, free_stage = STAGES - 1;
  for (int kt = 0; kt < k_tiles; ++kt) {
    if (kt % kCarryTiles == kCarryTiles - 2) carry();
    // Afterwards the next k-tile has arrived for all warps, and none of them reads the previous one any more.
    ptx::cp_async_wait<STAGES - 3>();
    __syncthreads();
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      load_fragments((step + 1) % 2, step + 1 < kSteps ? stage : next_stage, (step + 1) % kSteps);
      if (step == 0) fetch(free_stage);
      multiply(alone, step % 2, kPairs.planes[0]);
#pragma unroll
      for (int pair = 1; pair < Pairs::kCount; ++pair) multiply(low, step % 2, kPairs.planes[pair]);
    }
    if (kt % kAloneTiles == kAloneTiles - 1 || kt + 1 == k_tiles) {
#pragma unroll
      for (int i = 0; i < MI * kCount; ++i) {
        float& x = alone[i / kCount][i % kCount];
        split::add_keeping_rest(high[i / kCount][i % kCount], x);
        split::add_rest<Config::kLowBits>(low[i / kCount][i % kCount], x);
        x = 0;
      }
    }
    free_stage = stage;
    stage = next_stage;
    next_stage = next_stage + 1 == STAGES ? 0 : next_stage + 1;
  }
  if constexpr (Config::kScales) {
#pragma unroll
    for (int i = 0; i < MI * kCount; ++i) {
      float& x = high[i / kCount][i % kCount];
      x = split::whole_sum<Config::kLowBits>(x, low[i / kCount][i % kCount]);
    }
  } else {
    carry();
  }
  ptx::cp_async_wait_all();
  __syncthreads();  // the epilogue reuses the stages' shared memory as scratch

  split::Scales* const scales = reinterpret_cast<split::Scales*>(smem + Config::kSumsBytes) + warp;
  if constexpr (Config::kScales) {
    const split::Place first{work.m0 + warp_m, work.n0 + warp_n};
    split::fetch_scales(p.scaled_a, p.scaled_b, product, work, first, scales);
  }
  // All sums of the warp are stored first, so that one loop body can handle both of its blocks of 16 rows.
  float* const scratch = reinterpret_cast<float*>(smem) + warp * Config::WM * split::kScratchRow;
  const auto place = [&](int i, int j) {  // where two neighbouring sums of this thread go
    const int row = i * 16 + lane / 4 + j / 2 % 2 * 8;
    return reinterpret_cast<float2*>(scratch + row * split::kScratchRow + j / 4 * 8 + lane % 4 * 2);
  };
#pragma unroll
  for (int i = 0; i < MI; ++i) {
#pragma unroll
    for (int j = 0; j < kCount; j += 2) *place(i, j) = make_float2(high[i][j], high[i][j + 1]);
  }
#pragma unroll 1
  for (int i = 0; i < MI; ++i) {
    float sums[kCount];
#pragma unroll
    for (int j = 0; j < kCount; j += 2) sums[j] = place(i, j)->x, sums[j + 1] = place(i, j)->y;
    const split::Place first{work.m0 + warp_m + i * 16, work.n0 + warp_n};
    if constexpr (Config::kScales) {
      split::scale_back<Config::WN>(p.scaled_a, p.scaled_b, product, work, first, *scales, sums, p.inaccurate);
    } else {
      split::mend_if_needed<Config::WN>(product, work, first, sums);
    }
    split::emit<Config::WN>(product, work, first, sums, scratch + i * 16 * split::kScratchRow);
  }
}

}  // namespace hgemm::sm80_split
