// Float32 products on tensor cores (sm_90a): each operand is the sum of three bfloat16 planes, and of their nine
// products the six that matter are added up.
//
// A tensor core truncates as it accumulates, so one accumulator drifts as K grows. Here an accumulator holds 64 of K of
// the first planes' product, and is then added to a sum in a float32 register, which rounds to nearest. A second
// register beside each sum takes the five other products, and what the sum's own roundings lose (Sums): the error stays
// that of a few roundings, however long K is, where float32 arithmetic's grows (NOTES.md).
//
// A block of three warpgroups stays on its SM and walks tiles of C. One thread of the producer warpgroup loads stages
// of all six planes; the two consumer warpgroups have half of the tile's rows each, and take turns: while one adds up
// the other multiplies. In a cluster along M each block loads half of B's rows and multicasts them.
//
// What planes cannot hold is computed again, element by element, in float64: results that are not finite (infinities,
// NaN and what rounds to them leave NaN in the planes) or tiny, and rows that the pass has found too small. No
// element's value depends on other rows of A or other columns of B.
#pragma once

#include <cuda.h>
#include <cuda_bf16.h>

#include <cstdint>

#include "core/fast_divisor.h"
#include "core/problem.h"
#include "kernels/sm90_split/config.h"
#include "ptx/cluster.cuh"
#include "ptx/dependent_launch.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/tma.cuh"
#include "ptx/wgmma.cuh"
#include "tile/epilogue.cuh"
#include "tile/raster.h"
#include "tile/ring.cuh"

namespace hgemm::sm90_split {

/// One operand: its planes, and itself, for what they cannot hold.
struct OperandParams {
  CUtensorMap planes;
  int32_t step[2];  // from one batch to the next, in matrices of planes: outer, inner
  const unsigned char* tiny;
  const float* x;
  int64_t row, k_stride, batch[2];
  int32_t rows, pieces;
};

struct Params {
  OperandParams a, b;
  int k;
  uint32_t units;  // of work: the tiles of one cluster
  tile::Raster raster;
  FastDivisor batch_inner;
  bool pairs;  // two neighbours of D may be written at once
  tile::EpilogueParams epilogue;
};

constexpr int kTurn = 1;         // (2) named barriers: the tensor cores are the consumer warpgroup's
constexpr int kCarrySteps = 16;  // of the main loop, from one Sums::carry() to the next

/// A block's tile.
struct Work {
  int m0, n0, outer, inner;
};

/// Of this block in its cluster.
template <class Config>
__device__ __forceinline__ uint32_t block_rank() {
  return Config::CM > 1 ? ptx::cluster_rank() : 0;
}

template <class Config>
__device__ __forceinline__ Work work_at(const Params& p, uint32_t unit) {
  const uint32_t rank = block_rank<Config>();
  const tile::RasterUnit at = tile::unit_at(p.raster, unit);
  const uint32_t outer = p.batch_inner.quotient(at.batch);
  return {static_cast<int>((at.row * Config::CM + rank) * Config::BM), static_cast<int>(at.col * Config::BN),
          static_cast<int>(outer), static_cast<int>(at.batch - outer * p.batch_inner.divisor())};
}

__device__ __forceinline__ int matrix_of(const OperandParams& o, const Work& work) {
  return work.outer * o.step[0] + work.inner * o.step[1];
}

/// Whether a row of A, or a column of B, has pieces that are too small for planes.
__device__ __forceinline__ bool is_tiny(const OperandParams& o, int matrix, int row) {
  if (row >= o.rows) return false;
  const unsigned char* const pieces = o.tiny + (int64_t{matrix} * o.rows + row) * o.pieces;
  uint32_t any = 0;
#pragma unroll 4
  for (int i = 0; i < o.pieces; ++i) any |= pieces[i];
  return any != 0;
}

/// Whether a sum is what it seems: finite, and not so small that its terms' last planes were below the smallest float.
__device__ __forceinline__ bool is_held(float sum) {
  constexpr uint32_t kSmallest = (127 - 100) << 23, kInfinity = 0x7f800000;
  const uint32_t magnitude = __float_as_uint(sum) & 0x7fffffff;
  return magnitude == 0 || (magnitude >= kSmallest && magnitude < kInfinity);
}

template <class Config>
struct Barriers {
  uint32_t at;
  /// A stage has been loaded.
  __device__ __forceinline__ uint32_t full(uint32_t s) const { return at + s * 8; }
  /// A stage has been multiplied by all that read it.
  __device__ __forceinline__ uint32_t empty(uint32_t s) const { return at + (Config::STAGES + s) * 8; }
  __device__ __forceinline__ void init() const {
    for (int s = 0; s < Config::STAGES; ++s) {
      ptx::mbarrier_init(full(s), 1);
      ptx::mbarrier_init(empty(s), 8 * Config::CM);  // consumer warps
    }
    ptx::fence_mbarrier_init();
  }
};

/// The producer thread: the planes of 64 k of both operands. A's lie in the stage one after the other; B's too, and of
/// each plane every block of the cluster loads as many rows for all.
template <class Config>
__device__ __forceinline__ void load_stage(const Params& p, const Work& work, int k, uint32_t stage, uint32_t full) {
  constexpr int kRowsB = Config::BN / Config::CM;
  ptx::mbarrier_arrive_expect_tx(full, Config::kStageBytes);
  const int a = matrix_of(p.a, work), b = matrix_of(p.b, work);
  ptx::tma_load(stage, &p.a.planes, full, {k, work.m0, 0, a});
#pragma unroll
  for (int plane = 0; plane < Config::kPlanes; ++plane) {
    const int first = static_cast<int>(block_rank<Config>()) * kRowsB;
    const uint32_t to = stage + Config::kStageBytesA + (plane * Config::BN + first) * Config::kPlane;
    const ptx::TmaCoord at{k, work.n0 + first, plane, b};
    if constexpr (Config::CM == 1) {
      ptx::tma_load(to, &p.b.planes, full, at);
    } else {
      ptx::tma_load_multicast(to, &p.b.planes, full, at, (1 << Config::CM) - 1);
    }
  }
}

/// Starts the products of planes kFirst..kLast-1 of kPairs of a stage, added to `acc`, or `anew`.
template <class Config, int kFirst, int kLast>
__device__ __forceinline__ void multiply(float (&acc)[Config::BN / 2], uint32_t stage, int group, bool anew) {
  constexpr int kPairs[6][2] = {{0, 0}, {2, 0}, {1, 1}, {0, 2}, {1, 0}, {0, 1}};
  constexpr int kEightLines = 8 * Config::kPlane, kStep = 32;
  const uint64_t a = ptx::wgmma_descriptor(stage + group * 64 * Config::kPlane, 0, kEightLines);
  const uint64_t b = ptx::wgmma_descriptor(stage + Config::kStageBytesA, 0, kEightLines);
#pragma unroll
  for (int pair = kFirst; pair < kLast; ++pair) {
#pragma unroll
    for (int step = 0; step < Config::BK / 16; ++step) {
      ptx::Wgmma<__nv_bfloat16>::m64k16<Config::BN, 0, 0>(
          acc, ptx::wgmma_advance(a, kPairs[pair][0] * Config::BM * Config::kPlane + step * kStep),
          ptx::wgmma_advance(b, kPairs[pair][1] * Config::BN * Config::kPlane + step * kStep),
          !anew || pair > kFirst || step > 0);
    }
  }
  ptx::wgmma_commit();
}

/// A consumer thread's part of a tile. `low`: what is too small to be seen in `high`; the tensor core adds five of the
/// products to it, of at most 2^-8 of the sixth, so that its truncation does not show.
template <class Config>
struct Sums {
  static constexpr int kCount = Config::BN / 2;
  float high[kCount], low[kCount];

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int i = 0; i < kCount; ++i) high[i] = low[i] = 0;
  }
  /// A stage. `hand_over`: called once the tensor cores have all of the stage's work.
  template <class HandOver>
  __device__ __forceinline__ void add(uint32_t stage, int group, const HandOver& hand_over) {
    float x[kCount];
    ptx::wgmma_fence();
    multiply<Config, 0, 1>(x, stage, group, true);
    multiply<Config, 1, 6>(low, stage, group, false);
    hand_over();
    ptx::wgmma_wait<1>();
    ptx::wgmma_pin(x);
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      // Dekker's two-sum, half as many additions as Knuth's: exact unless x exceeds the sum, as it may at first.
      const float sum = __fadd_rn(high[i], x[i]);
      x[i] = __fsub_rn(x[i], __fsub_rn(sum, high[i]));
      high[i] = sum;
    }
    ptx::wgmma_wait<0>();
    ptx::wgmma_pin(low);
#pragma unroll
    for (int i = 0; i < kCount; ++i) low[i] += x[i];
  }
  /// Leaves in `low` what `high` cannot take: every now and then, so that `low` stays small. NaN where anything was not
  /// finite.
  __device__ __forceinline__ void carry() {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {  // Knuth's two-sum
      const float sum = __fadd_rn(high[i], low[i]), of_low = __fsub_rn(sum, high[i]);
      low[i] = __fadd_rn(__fsub_rn(high[i], __fsub_rn(sum, of_low)), __fsub_rn(low[i], of_low));
      high[i] = sum;
    }
  }
};

/// What a consumer thread has of a tile: two rows, eight apart, and of each eight columns two neighbours.
struct Place {
  int row, col;  // of the first element
};

/// A row of A, or a column of B, as it lies.
__device__ __forceinline__ const float* row_of(const OperandParams& o, const Work& work, int row) {
  return o.x + work.outer * o.batch[0] + work.inner * o.batch[1] + min(row, o.rows - 1) * o.row;
}

/// Computes in float64, in K's order, what the planes cannot hold; a sum beyond the largest float32 becomes infinite as
/// one in float32 does. Seldom, and slow.
template <class Config>
__device__ __forceinline__ void mend(const Params& p, const Work& work, Place at, float (&sums)[Config::BN / 2]) {
  constexpr int kCols = Config::BN / 4, kAtOnce = 4;  // of this thread
  constexpr double kLargest = 3.40282346638528859811704183484516925440e+38;
  const int matrix_a = matrix_of(p.a, work), matrix_b = matrix_of(p.b, work);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = at.row + half * 8;
    const bool tiny_row = is_tiny(p.a, matrix_a, row);
    const float* const a = row_of(p.a, work, row);
#pragma unroll
    for (int first = 0; first < kCols; first += kAtOnce) {
      const float* b[kAtOnce];
      bool bad[kAtOnce], any = false;
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) {
        const int col = at.col + (first + j) / 2 * 8 + j % 2;
        b[j] = row_of(p.b, work, col);
        bad[j] = !is_held(sums[(first + j) / 2 * 4 + half * 2 + j % 2]) || tiny_row || is_tiny(p.b, matrix_b, col);
        any |= bad[j];
      }
      if (!__any_sync(~0u, any)) continue;
      double exact[kAtOnce] = {};
#pragma unroll 4
      for (int k = 0; k < p.k; ++k) {
        const double x = a[k * p.a.k_stride];
#pragma unroll
        for (int j = 0; j < kAtOnce; ++j) {
          exact[j] = fma(x, double{b[j][k * p.b.k_stride]}, exact[j]);
          if (fabs(exact[j]) > kLargest) exact[j] = copysign(double{INFINITY}, exact[j]);
        }
      }
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) {
        if (bad[j]) sums[(first + j) / 2 * 4 + half * 2 + j % 2] = static_cast<float>(exact[j]);
      }
    }
  }
}

/// Whether this warp has anything to mend.
template <class Config>
__device__ __forceinline__ bool needs_mending(const Params& p, const Work& work, Place at, int first_row,
                                              const float (&sums)[Config::BN / 2]) {
  const int lane = threadIdx.x % 32;
  bool any = lane < 16 && is_tiny(p.a, matrix_of(p.a, work), first_row + lane);
#pragma unroll 1
  for (int col = lane; col < Config::BN; col += 32) any |= is_tiny(p.b, matrix_of(p.b, work), work.n0 + col);
#pragma unroll
  for (int i = 0; i < Config::BN / 2; ++i) any |= !is_held(sums[i]);
  return __any_sync(~0u, any);
}

/// act(alpha * sums + beta * C + bias), to D.
template <class Config>
__device__ __forceinline__ void store(const Params& p, const Work& work, Place at,
                                      const float (&sums)[Config::BN / 2]) {
  const tile::EpilogueParams& e = p.epilogue;
  const int64_t d0 = work.outer * e.d_batch[0] + work.inner * e.d_batch[1];
  const int64_t c0 = work.outer * e.c_batch[0] + work.inner * e.c_batch[1];
  const int cols = static_cast<int>(e.n);
#pragma unroll
  for (int j = 0; j < Config::BN / 8; ++j) {
    const int col = at.col + j * 8;
    if (col >= cols) break;
    const int last = min(col + 1, cols - 1);
    float bias[2] = {};
    if (e.bias != nullptr) {
      bias[0] = static_cast<const float*>(e.bias)[col];
      bias[1] = static_cast<const float*>(e.bias)[last];
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int64_t row = at.row + half * 8;
      if (row >= e.m) continue;
      float v[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        v[i] = sums[j * 4 + half * 2 + i] * e.alpha;
        if (e.c != nullptr) {
          const int64_t c = c0 + row * e.c_row + (i == 0 ? col : last) * e.c_col;
          v[i] = fmaf(e.beta, static_cast<const float*>(e.c)[c], v[i]);
        }
        v[i] += bias[i];
      }
      const int64_t d = d0 + row * e.ldd + col;
      const auto write = [&](void* matrix) {
        float* const to = static_cast<float*>(matrix) + d;
        if (p.pairs && last > col) {
          *reinterpret_cast<float2*>(to) = make_float2(v[0], v[1]);
        } else {
          to[0] = v[0];
          if (last > col) to[1] = v[1];
        }
      };
      if (e.pre_activation != nullptr) write(e.pre_activation);
      if (e.act != Activation::kNone) v[0] = tile::activate(v[0], e.act), v[1] = tile::activate(v[1], e.act);
      write(e.d);
    }
  }
}

template <class Config>
__global__ void __launch_bounds__(Config::kThreads, 1) kernel(const __grid_constant__ Params p) {
  extern __shared__ __align__(1024) unsigned char bytes[];
  const uint32_t stages = static_cast<uint32_t>(__cvta_generic_to_shared(bytes));
  const Barriers<Config> barriers{stages + Config::STAGES * Config::kStageBytes};
  const int lane = threadIdx.x % 32;
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0);
  const int steps = (p.k + Config::BK - 1) / Config::BK;

  ptx::grid_launch_dependents();
  if (threadIdx.x == 0) barriers.init();
  if constexpr (Config::CM > 1) {
    ptx::cluster_sync();
  } else {
    __syncthreads();
  }

  tile::Ring<Config::STAGES> ring;  // each side's own position in it
  if (warp >= 8) {
    ptx::release_registers<24>();
    if (warp == 8 && lane == 0) {
      ptx::tma_prefetch(&p.a.planes);
      ptx::tma_prefetch(&p.b.planes);
      ptx::grid_dependency_wait();
      for (uint32_t unit = blockIdx.x / Config::CM; unit < p.units; unit += gridDim.x / Config::CM) {
        const Work work = work_at<Config>(p, unit);
        for (int step = 0; step < steps; ++step, ring.advance()) {
          ptx::mbarrier_wait(barriers.empty(ring.stage), ring.parity ^ 1);
          load_stage<Config>(p, work, step * Config::BK, stages + ring.stage * Config::kStageBytes,
                             barriers.full(ring.stage));
        }
      }
      if constexpr (Config::CM > 1) {  // a block must outlive its peers' arrivals
        for (int s = 0; s < Config::STAGES; ++s, ring.advance()) {
          ptx::mbarrier_wait(barriers.empty(ring.stage), ring.parity ^ 1);
        }
      }
    }
  } else {
    ptx::claim_registers<240>();
    ptx::grid_dependency_wait();
    const int group = warp / 4;
    if (group == 1) ptx::barrier_arrive(kTurn, 256);
    for (uint32_t unit = blockIdx.x / Config::CM; unit < p.units; unit += gridDim.x / Config::CM) {
      Sums<Config> sums;
      sums.clear();
      for (int step = 0; step < steps; ++step, ring.advance()) {
        if (step % kCarrySteps == kCarrySteps - 1) sums.carry();
        const uint32_t stage = stages + ring.stage * Config::kStageBytes;
        const bool is_last = step + 1 == steps && unit + gridDim.x / Config::CM >= p.units;
        ptx::mbarrier_wait(barriers.full(ring.stage), ring.parity);
        ptx::barrier_sync(kTurn + group, 256);
        sums.add(stage, group, [&] {
          if (group == 0 || !is_last) ptx::barrier_arrive(kTurn + 1 - group, 256);
        });
        if constexpr (Config::CM == 1) {
          if (lane == 0) ptx::mbarrier_arrive(barriers.empty(ring.stage));
        } else {
          if (lane < Config::CM) ptx::mbarrier_arrive_cluster(barriers.empty(ring.stage), lane);
        }
      }
      sums.carry();
      const Work work = work_at<Config>(p, unit);
      const int first_row = work.m0 + warp * 16;
      const Place at{first_row + lane / 4, work.n0 + lane % 4 * 2};
      if (needs_mending<Config>(p, work, at, first_row, sums.high)) mend<Config>(p, work, at, sums.high);
      store<Config>(p, work, at, sums.high);
    }
  }
}

}  // namespace hgemm::sm90_split
