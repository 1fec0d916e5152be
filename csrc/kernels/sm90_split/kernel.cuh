// Float32 GEMMs on tensor cores (sm_90a). Each operand is the sum of three bfloat16 planes, or of two float16 planes
// whose rows are scaled (tile/split_planes.h). A plane product is the GEMM of one plane of A and one plane of B. The
// plane products that matter are added up: six of nine, or three of four.
//
// A tensor core truncates as it accumulates, so a single accumulator drifts as K grows. Here an accumulator holds 64 of
// K of the product of the first planes. It is then added to a sum in a float32 register, which rounds to nearest. A
// second register beside each sum takes the other plane products, and what the roundings of the sum lose (Sums). So the
// error stays that of a few roundings, however long K is, whereas the error of float32 arithmetic grows with K
// (NOTES.md).
//
// The kernel is persistent: a block of three warpgroups stays on its SM and computes one output tile of C after
// another. One thread of the producer warpgroup loads stages of all planes. The two consumer warpgroups have half
// of the tile's rows each, and alternate (pingpong within a tile): while one adds up its accumulators, the other
// multiplies. In a cluster along M each block loads a part of B's rows and multicasts it.
//
// K of the tiles that do not fill a wave may be split into slices (Schedule), whose blocks store their sums in the
// workspace (split-K). Each warp has its own part of a tile, and a counter for that part. The last warp to store its
// sums of a part adds up the sums of all slices, in the slices' order.
//
// Elements that three planes cannot represent are computed again, one by one (tile/split_product.cuh). No element
// depends on the values in other rows of A or other columns of B.
//
// A kernel over two planes checks its results (tile/split_scaled.cuh). Where one is not accurate it sets the flag
// `inaccurate`, and the kernel over three planes that follows in the stream computes all results again. Otherwise that
// one leaves at once. So the operands' values decide how many products there are, and the host does not wait for them.
//
// The sum of an element depends on which of its two factors is A's, by the order of the products of planes. So of
// x @ x.T only the upper triangle is computed, and each result is stored twice (emit_mirrored).
//
// Barriers. g is a consumer warpgroup, 0 or 1.
//
//   mbarrier          completes a phase      who arrives                              who waits
//   full[STAGES]      kFullArrivals and      the producer thread, which announces     the consumer threads, before they
//                     kStageBytes            kStageBytes; the TMA loads of all        read the stage
//                                            blocks of the cluster complete them
//   empty[STAGES]     kEmptyArrivals         one lane of each consumer warp, in       the producer thread, before it
//                                            each block of the cluster, once the      loads the stage; in clusters also
//                                            warp has read the stage                  at its end, for every stage
//
//   named barrier     threads                who arrives                              who waits
//   kMathOrder + g    kConsumerThreads       warpgroup 1 - g, when the tensor cores   warpgroup g, before it starts the
//                                            have only its last pair of planes of     wgmma of a stage; warpgroup 0
//                                            the stage left; warpgroup 1 also once    also once at its end
//                                            at first, so that warpgroup 0 begins
//
//   All threads of the cluster, or of a block without one, meet once, when the mbarriers are made.
//
// Timeline of each role:
//
//   producer thread (warp 8, lane 0)
//     wait for the kernel that makes the planes; leave if there is nothing to do
//     for each work tile (or slice of one):
//       for each stage of K: wait empty; announce the bytes on full; start the TMA loads
//     in clusters: wait until every stage is empty
//   all other threads of the producer warpgroup
//     exit at once
//   consumer warpgroup g
//     wait for the kernel that makes the planes; leave if there is nothing to do
//     warpgroup 1: arrive at kMathOrder
//     for each work tile (or slice of one):
//       over two planes: start to copy the scales of the tile's rows and columns to shared memory
//       for each stage of K: wait full
//                            wait kMathOrder + g; start wgmma
//                            wait for the products of the first planes and add them up
//                            wait for all but the last pair of planes; arrive at kMathOrder + 1 - g
//                            wait for the last pair and add up what is left; release the stage
//       a slice: store the sums; if this warp is the last of its part of the tile, add up all slices,
//                otherwise go on to the next work tile
//       compute again the elements that three planes cannot represent, or scale back the sums over two and check them
//       epilogue
#pragma once

#include <cuda.h>

#include <cstdint>

#include "core/fast_divisor.h"
#include "core/problem.h"
#include "kernels/sm90_split/config.h"
#include "ptx/cluster.cuh"
#include "ptx/dependent_launch.cuh"
#include "ptx/global.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/smem_addr.cuh"
#include "ptx/tma.cuh"
#include "ptx/wgmma.cuh"
#include "tile/raster.h"
#include "tile/ring.cuh"
#include "tile/split_product.cuh"
#include "tile/split_scaled.cuh"
#include "tile/split_sums.cuh"
#include "tile/triangle.h"

namespace hgemm::sm90_split {

namespace split = tile::split;

struct Params {
  CUtensorMap planes_a, planes_b;
  split::Product product;
  split::Scaled scaled_a, scaled_b;  // of kernels over two planes
  unsigned* inaccurate;              // see split::Memory
  uint32_t units;  // work tiles (the output tiles of one cluster) that are not sliced, and slices of the others
  tile::Raster raster;
  tile::Triangle triangle;  // in place of `raster`, if `is_triangle`
  bool is_triangle;
  uint32_t whole;    // the first `whole` units are work tiles that are not sliced
  FastDivisor rest;  // the number of work tiles that are sliced
  uint32_t slices;
  int slice_steps;
  float* sums;         // of the slices (Schedule)
  unsigned* counters;  // zero at the start
};

constexpr int kMathOrder = 1;    // (2) named barriers: the consumer warpgroup may start the wgmma of a stage
constexpr int kStepBytes = 32;   // from one k16 step to the next in a line of a stage
constexpr int kCarrySteps = 16;  // stages from one Sums::carry() to the next

/// The rank of this block in its cluster.
template <class Config>
__device__ __forceinline__ uint32_t block_rank() {
  return Config::CM > 1 ? ptx::cluster_rank() : 0;
}

/// A unit of work of a cluster: number `tiles` of the work tiles, and the slice of K. Work tiles that are not sliced
/// have slice 0.
struct Piece {
  uint32_t tiles, slice;
};
__device__ __forceinline__ Piece piece_at(const Params& p, uint32_t unit) {
  if (unit < p.whole) return {unit, 0};
  const uint32_t slice = p.rest.quotient(unit - p.whole);
  return {unit - slice * p.rest.divisor(), slice};
}

/// This block's output tile in work tile `tiles`.
template <class Config>
__device__ __forceinline__ split::Work work_at(const Params& p, uint32_t tiles) {
  const uint32_t rank = block_rank<Config>();
  const tile::RasterUnit at = p.is_triangle ? tile::unit_at(p.triangle, tiles) : tile::unit_at(p.raster, tiles);
  const uint32_t outer = p.product.batch_inner.quotient(at.batch);
  return {static_cast<int>((at.row * Config::CM + rank) * Config::BM), static_cast<int>(at.col * Config::BN),
          static_cast<int>(outer), static_cast<int>(at.batch - outer * p.product.batch_inner.divisor())};
}

/// The stages of K of a unit: the first one, and their number.
struct Steps {
  int first, count;
};

template <class Config>
__device__ __forceinline__ Steps steps_of(const Params& p, uint32_t unit) {
  const int all = (p.product.k + Config::BK - 1) / Config::BK;
  if (unit < p.whole) return {0, all};
  const int first = static_cast<int>(piece_at(p, unit).slice) * p.slice_steps;
  return {first, min(p.slice_steps, all - first)};
}

template <class Config>
struct Barriers {
  uint32_t at;
  /// Completes when a stage has been loaded.
  __device__ __forceinline__ uint32_t full(uint32_t s) const { return at + s * 8; }
  /// Completes when all warps that read a stage have done so.
  __device__ __forceinline__ uint32_t empty(uint32_t s) const { return at + (Config::STAGES + s) * 8; }
  __device__ __forceinline__ void init() const {
    for (int s = 0; s < Config::STAGES; ++s) {
      ptx::mbarrier_init(full(s), Config::kFullArrivals);
      ptx::mbarrier_init(empty(s), Config::kEmptyArrivals);
    }
    ptx::fence_mbarrier_init();
  }
};

/// Called by the producer thread: loads the planes of 64 k of both operands. In a stage the planes of A come one after
/// the other, then the planes of B. Every block of the cluster loads an equal part of the rows of each plane of B, and
/// multicasts it to all blocks.
template <class Config>
__device__ __forceinline__ void load_stage(const Params& p, const split::Work& work, int k, uint32_t stage,
                                           uint32_t full) {
  constexpr int kRowsB = Config::BN / Config::CM;
  ptx::mbarrier_arrive_expect_tx(full, Config::kStageBytes);
  const int a = split::matrix_of(p.product.a, work), b = split::matrix_of(p.product.b, work);
  ptx::tma_load(stage, &p.planes_a, full, {k, work.m0, 0, a});
#pragma unroll
  for (int plane = 0; plane < Config::kPlanes; ++plane) {
    const int first = static_cast<int>(block_rank<Config>()) * kRowsB;
    const uint32_t to = stage + Config::kStageBytesA + (plane * Config::BN + first) * Config::kPlane;
    const ptx::TmaCoord at{k, work.n0 + first, plane, b};
    if constexpr (Config::CM == 1) {
      ptx::tma_load(to, &p.planes_b, full, at);
    } else {
      ptx::tma_load_multicast(to, &p.planes_b, full, at, (1 << Config::CM) - 1);
    }
  }
}

/// The lower words of the matrix descriptors of the first planes in a stage. They are computed before
/// the warpgroup waits for its turn, not while the tensor cores wait for it.
struct Operands {
  uint32_t a, b;
};
template <class Config>
__device__ __forceinline__ Operands operands_at(uint32_t stage, int group) {
  const uint32_t a = stage + group * 64 * Config::kPlane, b = stage + Config::kStageBytesA;
  Operands at{(a & 0x3ffff) >> 4, (b & 0x3ffff) >> 4};
  asm volatile("" : "+r"(at.a), "+r"(at.b));
  return at;
}

/// Starts the wgmma of a stage for the pairs of planes kFirst..kLast-1. They add to `acc` or, with `anew`, overwrite
/// it.
template <class Config, int kFirst, int kLast>
__device__ __forceinline__ void multiply(float (&acc)[Config::BN / 2], const Operands& at, bool anew) {
  using Element = typename split::Pairs<Config::kPlanes>::Element;
  constexpr split::Pairs<Config::kPlanes> kPairs{};
  const uint64_t descriptor = ptx::wgmma_descriptor(0, 0, 8 * Config::kPlane);
#pragma unroll
  for (int pair = kFirst; pair < kLast; ++pair) {
    const uint32_t a = at.a + kPairs.planes[pair][0] * (Config::BM * Config::kPlane >> 4);
    const uint32_t b = at.b + kPairs.planes[pair][1] * (Config::BN * Config::kPlane >> 4);
#pragma unroll
    for (int step = 0; step < Config::BK / 16; ++step) {
      ptx::Wgmma<Element>::template m64k16<Config::BN, 0, 0>(acc, descriptor | (a + step * (kStepBytes >> 4)),
                                                             descriptor | (b + step * (kStepBytes >> 4)),
                                                             !anew || pair > kFirst || step > 0);
    }
  }
}

/// A consumer thread's part of a tile.
template <class Config>
struct Sums : split::TwoSums<Config::BN / 2, Config::kLowBits> {
  using Base = split::TwoSums<Config::BN / 2, Config::kLowBits>;
  using Base::high, Base::low, Base::kCount;

  /// Adds the plane products of a stage. `hand_over` is called when the tensor cores have only those of the last pair
  /// of planes left, so that the other warpgroup's wgmma follow without a gap. If both warpgroups had wgmma in flight
  /// all the time, they would end together, and the tensor cores would wait while both add.
  template <class HandOver>
  __device__ __forceinline__ void add(const Operands& at, const HandOver& hand_over) {
    constexpr int kPairs = split::Pairs<Config::kPlanes>::kCount;
    float x[kCount];
    ptx::wgmma_fence();
    multiply<Config, 0, 1>(x, at, true);
    ptx::wgmma_commit();
    multiply<Config, 1, kPairs - 1>(low, at, false);
    ptx::wgmma_commit();
    multiply<Config, kPairs - 1, kPairs>(low, at, false);
    ptx::wgmma_commit();
    ptx::wgmma_wait<2>();
    this->add_first(x);
    ptx::wgmma_wait<1>();
    hand_over();
    ptx::wgmma_wait<0>();
    this->add_rest(x);
  }
  /// Leaves the sum in `high`, after the last stage.
  __device__ __forceinline__ void finish() {
#pragma unroll
    for (int i = 0; i < kCount; ++i) high[i] = split::whole_sum<Config::kLowBits>(high[i], low[i]);
  }
};

/// Stores a warp's sums of a slice in the workspace. The last warp to do so for its part of the tile gets the sums over
/// all slices in `sums.high`, and true; the others get false.
template <class Config>
__device__ __forceinline__ bool add_slices(const Params& p, const Piece& piece, int warp, Sums<Config>& sums) {
  constexpr int kCount = Sums<Config>::kCount;
  const uint32_t tile = (piece.tiles - p.whole) * Config::CM + block_rank<Config>();
  const uint32_t part = tile * kConsumerWarps + warp, lane = threadIdx.x % 32;
  const int64_t in_slice = int64_t{p.rest.divisor()} * Config::CM * Config::BM * Config::BN;
  float* const at = p.sums + int64_t{part} * (32 * kCount) + lane * 4;
#pragma unroll
  for (int i = 0; i < kCount; i += 4) {
    *reinterpret_cast<float4*>(at + piece.slice * in_slice + i * 32) =
        make_float4(sums.high[i], sums.high[i + 1], sums.high[i + 2], sums.high[i + 3]);
  }
  __threadfence();
  __syncwarp();
  const unsigned before = lane == 0 ? atomicAdd(p.counters + part, 1) : 0;
  if (__shfl_sync(~0u, before, 0) + 1 != p.slices) return false;
  __threadfence();
  constexpr int kAtOnce = kCount / 2;
#pragma unroll
  for (int first = 0; first < kCount; first += kAtOnce) {
    double total[kAtOnce] = {};
#pragma unroll 1
    for (uint32_t s = 0; s < p.slices; ++s) {
#pragma unroll
      for (int i = 0; i < kAtOnce; i += 4) {
        const float4 v = ptx::ld_l2_16(at + s * in_slice + (first + i) * 32);
        total[i] += v.x, total[i + 1] += v.y, total[i + 2] += v.z, total[i + 3] += v.w;
      }
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) sums.high[first + i] = static_cast<float>(total[i]);
  }
  return true;
}

template <class Config>
__global__ void __launch_bounds__(Config::kThreads, 1) kernel(const __grid_constant__ Params p) {
  extern __shared__ __align__(1024) unsigned char bytes[];
  const uint32_t stages = ptx::smem_addr(bytes);
  const Barriers<Config> barriers{stages + Config::STAGES * Config::kStageBytes};
  const int lane = threadIdx.x % 32;
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0);

  ptx::grid_launch_dependents();
  if (threadIdx.x == 0) barriers.init();
  if constexpr (Config::CM > 1) {
    ptx::cluster_sync();
  } else {
    __syncthreads();
  }

  tile::Ring<Config::STAGES> ring;  // the position of this thread's role in the ring
  if (warp >= 8) {
    ptx::release_registers<24>();
    if (warp == 8 && lane == 0) {
      ptx::tma_prefetch(&p.planes_a);
      ptx::tma_prefetch(&p.planes_b);
      ptx::grid_dependency_wait();
      if (!Config::kScales && split::has_nothing_to_do(p.inaccurate)) return;
      for (uint32_t unit = blockIdx.x / Config::CM; unit < p.units; unit += gridDim.x / Config::CM) {
        const split::Work work = work_at<Config>(p, piece_at(p, unit).tiles);
        const Steps steps = steps_of<Config>(p, unit);
        for (int step = 0; step < steps.count; ++step, ring.advance()) {
          ptx::mbarrier_wait(barriers.empty(ring.stage), ring.parity ^ 1);
          load_stage<Config>(p, work, (steps.first + step) * Config::BK, stages + ring.stage * Config::kStageBytes,
                             barriers.full(ring.stage));
        }
      }
      if constexpr (Config::CM > 1) {  // the block must stay alive until its peers' arrivals have come
        for (int s = 0; s < Config::STAGES; ++s, ring.advance()) {
          ptx::mbarrier_wait(barriers.empty(ring.stage), ring.parity ^ 1);
        }
      }
    }
  } else {
    ptx::claim_registers<240>();
    ptx::grid_dependency_wait();
    if (!Config::kScales && split::has_nothing_to_do(p.inaccurate)) return;
    const int group = warp / 4;
    unsigned char* const scratch = bytes + Config::kScratchAt + warp * Config::kScratchBytes;
    split::Scales* const scales = reinterpret_cast<split::Scales*>(scratch);
    if (group == 1) ptx::barrier_arrive(kMathOrder, Config::kConsumerThreads);
    for (uint32_t unit = blockIdx.x / Config::CM; unit < p.units; unit += gridDim.x / Config::CM) {
      Sums<Config> sums;
      sums.clear();
      const Piece piece = piece_at(p, unit);
      const split::Work work = work_at<Config>(p, piece.tiles);
      const split::Place first{work.m0 + warp * 16, work.n0};
      if constexpr (Config::kScales) split::fetch_scales(p.scaled_a, p.scaled_b, p.product, work, first, scales);
      const int steps = steps_of<Config>(p, unit).count;
      for (int step = 0; step < steps; ++step, ring.advance()) {
        if (step % kCarrySteps == kCarrySteps - 1) sums.carry();
        const uint32_t stage = stages + ring.stage * Config::kStageBytes;
        ptx::mbarrier_wait(barriers.full(ring.stage), ring.parity);
        const Operands at = operands_at<Config>(stage, group);
        ptx::barrier_sync(kMathOrder + group, Config::kConsumerThreads);
        sums.add(at, [&] { ptx::barrier_arrive(kMathOrder + 1 - group, Config::kConsumerThreads); });
        if constexpr (Config::CM == 1) {
          if (lane == 0) ptx::mbarrier_arrive(barriers.empty(ring.stage));
        } else {
          if (lane < Config::CM) ptx::mbarrier_arrive_cluster(barriers.empty(ring.stage), lane);
        }
      }
      sums.finish();
      if (unit >= p.whole && !add_slices<Config>(p, piece, warp, sums)) continue;
      if constexpr (Config::kScales) {
        split::scale_back<Config::BN>(p.scaled_a, p.scaled_b, p.product, work, first, *scales, sums.high, p.inaccurate);
      } else {
        split::mend_if_needed<Config::BN>(p.product, work, first, sums.high);
      }
      split::emit<Config::BN>(p.product, work, first, sums.high, reinterpret_cast<float*>(scratch));
    }
    if (group == 0) ptx::barrier_sync(kMathOrder, Config::kConsumerThreads);
  }
}

}  // namespace hgemm::sm90_split
