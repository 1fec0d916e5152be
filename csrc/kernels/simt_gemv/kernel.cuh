// float32 GEMV: a few rows of x with a long operand W, on CUDA cores, where both consist of aligned 16-byte chunks.
// simt_skinny runs the other alignments.
//
// The kernel is limited by reading W, so nothing interrupts its loads. A thread loads W straight into registers, a few
// units ahead, and reads x, which all blocks share, through L1. There is no barrier before the sums.
//  - K-major W: the lanes of a warp share four rows, and shuffles add their sums.
//  - MN-major W: a lane computes four rows of W, which are contiguous, and iterates along k. Other lanes may
//    take other k of the same rows.
//
// The sums of warps that share rows are added in shared memory. An MN-major W may also be cut into slices of K, whose
// sums go through the workspace. The last block to arrive adds them in a fixed order, so the result has the same bits
// every time.
#pragma once

#include <cstdint>

#include "kernels/simt_gemv/config.h"
#include "ptx/dependent_launch.cuh"
#include "ptx/global.cuh"
#include "tile/counters.cuh"
#include "tile/epilogue.cuh"

namespace hgemm::simt_gemv {

/// The compile-time parameters of the kernel: Config and the memory order of W.
template <class Config, Major kMajor>
struct Traits : Config {
  static constexpr bool kKMajor = kMajor == Major::kK;       // W is K-major
  static constexpr int kRows = kKMajor ? kRowsK : 4;         // rows of W that a lane computes
  static constexpr int kLoads = kKMajor ? kRowsK : kStepMN;  // 16-byte loads in a unit
  static constexpr int kStep = kKMajor ? kStepK : kStepMN;   // k of a lane in a unit
};

/// The run-time parameters. Strides count elements.
struct Params {
  const void *w, *x;
  int64_t ldw, x_row, x_k;                       // leading dimension of W; strides of x from row to row and along k
  int64_t w_batch[2], x_batch[2];                // batch strides, outer and inner
  uint32_t batch_inner;                          // extent of the inner batch dimension
  int rows, cols, k;                             // W is (rows, k), x is (cols, k)
  int lanes, warps, log2_rows, slice_k, slices;  // as in Schedule; 1 << log2_rows is its tile_rows
  bool swapped;                                  // the rows of D are those of W; otherwise its columns are
  int slot;                                      // slot of the arrival counters, -1 for none (tile/counters.h)
  float* partial;                                // partial sums, (batches, tiles, slices, COLS, rows of a tile)
  tile::EpilogueParams epilogue;
};

// The arrival counters of output tiles whose slices of K go to different blocks. They are all zero whenever no kernel
// that uses them is running: the last block to arrive at a counter resets it. tile/counters.cu assigns them to
// launches.
static __device__ unsigned counters[tile::kSlots * tile::kMaxCounted];

__device__ __forceinline__ float4 four(const uint4& v) {
  return make_float4(__uint_as_float(v.x), __uint_as_float(v.y), __uint_as_float(v.z), __uint_as_float(v.w));
}

/// The part of one warp: the sums of products of its rows of W and all rows of x, over its share of k.
template <class Traits>
class Products {
  static constexpr int COLS = Traits::COLS, kRows = Traits::kRows, kLoads = Traits::kLoads;
  static constexpr bool kKMajor = Traits::kKMajor;
  static constexpr int kSums = COLS * kRows;

 public:
  /// `row0`: the tile's first row; begin..end-1: the k of the slice.
  __device__ __forceinline__ Products(const Params& p, int row0, int begin, int end) : p_(p) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, part = warp % p.warps;
    const int across = kKMajor ? 1 : 32 / p.lanes;  // lanes along the rows
    row_ = kKMajor ? warp / p.warps * kRowsK : lane % across * 4;
    rows_left_ = p.rows - row0 - row_;
    step_ = p.warps * p.lanes * Traits::kStep;
    k_ = begin + part * p.lanes * Traits::kStep;
    lane_k_ = (kKMajor ? lane : lane / across) * Traits::kStep;
    end_ = end;
  }

  /// Accumulates over all k of the slice.
  __device__ __forceinline__ void run(const float* w, const float* x, int row0) {
    constexpr int kDepth = Traits::DEPTH;
    const int64_t row = row0 + row_;
    const int64_t k = k_ + lane_k_;
    const float* at = kKMajor ? w + row * p_.ldw + k : w + k * p_.ldw + row;
    x += lane_k_;
    uint4 units[kDepth][kLoads];
#pragma unroll
    for (int d = 0; d < kDepth; ++d) load(units[d], &at, k_ + d * step_);
#pragma unroll 1
    while (k_ < end_) {
#pragma unroll
      for (int d = 0; d < kDepth; ++d) {
        if (k_ >= end_) break;
        add(units[d], x + k_);
        load(units[d], &at, k_ + kDepth * step_);
        k_ += step_;
      }
    }
  }

  /// Adds the sums over the lanes that share rows, and stores the warp's sums to its part of `to`, (warps, COLS, rows
  /// of a tile).
  __device__ __forceinline__ void store(float* to) {
    const int lane = threadIdx.x % 32, part = threadIdx.x / 32 % p_.warps;
    to += (part * COLS << p_.log2_rows) + row_;
    if constexpr (kKMajor) {
      int first = 0;  // this lane's first sum: each exchange halves a lane's sums, as long as it has two or more
      exchange<16, kSums>(lane, &first);
      constexpr int kLeft = kSums >= 32 ? kSums / 32 : 1, kAlike = kSums >= 32 ? 1 : 32 / kSums;
      if (lane % kAlike == 0) {
#pragma unroll
        for (int i = 0; i < kLeft; ++i) to[((first + i) / kRows << p_.log2_rows) + (first + i) % kRows] = sums_[i];
      }
    } else {
#pragma unroll 1
      for (int apart = 16; apart > 16 / p_.lanes; apart /= 2) {
#pragma unroll
        for (int i = 0; i < kSums; ++i) sums_[i] += __shfl_xor_sync(~0u, sums_[i], apart);
      }
      if (lane_k_ > 0) return;
#pragma unroll
      for (int c = 0; c < COLS; ++c) {
        const float* const sums = sums_ + c * kRows;
        *reinterpret_cast<float4*>(to + (c << p_.log2_rows)) = make_float4(sums[0], sums[1], sums[2], sums[3]);
      }
    }
  }

 private:
  /// Loads the next unit of W, whose first k of the warp is `k`, with zeros beyond the end of W, and advances `at`.
  __device__ __forceinline__ void load(uint4 (&unit)[kLoads], const float** at, int k) {
    const int left = kKMajor ? (k + lane_k_ < end_ ? rows_left_ : 0) : (rows_left_ > 0 ? end_ - k - lane_k_ : 0);
    const float* from = *at;
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      unit[i] = i < left ? ptx::ld_once_16(from) : make_uint4(0, 0, 0, 0);
      from += p_.ldw;
    }
    *at += kKMajor ? step_ : step_ * p_.ldw;
  }

  /// Multiplies a unit of W with x and accumulates. In place of rows that x does not have, its last row is read again;
  /// their sums are never used.
  __device__ __forceinline__ void add(const uint4 (&unit)[kLoads], const float* x) {
    if (k_ + lane_k_ >= end_) return;
#pragma unroll
    for (int c = 0; c < COLS; ++c) {
      const float* const from = x + min(c, p_.cols - 1) * p_.x_row;
      float* const sums = sums_ + c * kRows;
      if constexpr (kKMajor) {
        const float4 v = four(ptx::ld_16(from));
#pragma unroll
        for (int i = 0; i < kRows; ++i) {
          const float4 w = four(unit[i]);
          sums[i] = fmaf(w.w, v.w, fmaf(w.z, v.z, fmaf(w.y, v.y, fmaf(w.x, v.x, sums[i]))));
        }
      } else {
#pragma unroll
        for (int q = 0; q < kLoads; q += 4) {
          if (q > 0 && k_ + lane_k_ + q >= end_) break;
          const float4 v = four(ptx::ld_16(from + q));
          const float vs[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const float4 w = four(unit[q + i]);
            sums[0] = fmaf(w.x, vs[i], sums[0]);
            sums[1] = fmaf(w.y, vs[i], sums[1]);
            sums[2] = fmaf(w.z, vs[i], sums[2]);
            sums[3] = fmaf(w.w, vs[i], sums[3]);
          }
        }
      }
    }
  }

  /// Adds this lane's first kCount sums over the lanes that differ in bits kApart and below. At each step a lane passes
  /// half of its sums to the lane kApart away and receives that lane's other half; with one sum left, both keep the
  /// total. `first`: the index of the first sum that this lane ends up with.
  template <int kApart, int kCount>
  __device__ __forceinline__ void exchange(int lane, int* first) {
    if constexpr (kApart > 0) {
      constexpr int kHalf = kCount / 2;
      const bool high = lane & kApart;
      if constexpr (kCount == 1) {
        sums_[0] += __shfl_xor_sync(~0u, sums_[0], kApart);
      } else {
#pragma unroll
        for (int i = 0; i < kHalf; ++i) {
          const float low = sums_[i], up = sums_[i + kHalf];
          sums_[i] = (high ? up : low) + __shfl_xor_sync(~0u, high ? low : up, kApart);
        }
        if (high) *first += kHalf;
      }
      exchange<kApart / 2, (kCount > 1 ? kHalf : 1)>(lane, first);
    }
  }

  const Params& p_;
  int row_, rows_left_, step_, end_;  // this lane's first row in the tile; rows to W's end; k of a unit of all warps
  int k_, lane_k_;                    // the warp's first k of the next unit to add; this lane's k in it
  float sums_[kSums] = {};
};

template <class Traits>
__global__ void __launch_bounds__(kThreads, kBlocks) kernel(const __grid_constant__ Params p) {
  constexpr int COLS = Traits::COLS;
  // Results of a tile that one thread sums over slices, at most. In smaller tiles, several threads share the slices of
  // a result.
  constexpr int kMost = (COLS * (Traits::kKMajor ? kWarps * kRowsK : kRowsMN) + kThreads - 1) / kThreads;
  extern __shared__ __align__(16) float smem[];  // first the warps' sums, later those of slices

  const int slices = Traits::kKMajor ? 1 : p.slices;
  const int64_t outer = blockIdx.z / p.batch_inner, inner = blockIdx.z - outer * p.batch_inner;
  const auto* const w = static_cast<const float*>(p.w) + outer * p.w_batch[0] + inner * p.w_batch[1];
  const auto* const x = static_cast<const float*>(p.x) + outer * p.x_batch[0] + inner * p.x_batch[1];
  const auto& e = p.epilogue;
  const tile::BatchOffset offset = {outer * e.d_batch[0] + inner * e.d_batch[1],
                                    outer * e.c_batch[0] + inner * e.c_batch[1]};
  const int row0 = blockIdx.x << p.log2_rows, outputs = COLS << p.log2_rows;
  float* const partial = p.partial + (static_cast<int64_t>(blockIdx.z) * gridDim.x + blockIdx.x) * slices * outputs;

  // Starting the next kernel early shortens small launches. In large launches, its blocks would take the place of
  // blocks of this kernel.
  const bool releases_early = !Traits::kKMajor && p.lanes == kMostLanesMN;

  ptx::grid_dependency_wait();
  // One block per slice, or one block for all slices of a tile (tile/counters.cu says when).
#pragma unroll 1
  for (int slice = blockIdx.y; slice < slices; slice += gridDim.y) {
    const int begin = slice * p.slice_k;
    Products<Traits> products(p, row0, begin, min(begin + p.slice_k, p.k));
    products.run(w, x, row0);
    if (releases_early) ptx::grid_launch_dependents();
    if (slice != static_cast<int>(blockIdx.y)) __syncthreads();  // the sums of the previous slice have been read
    products.store(smem);
    __syncthreads();
    if (slices == 1) break;
    for (int o = threadIdx.x; o < outputs; o += kThreads) {
      float sum = smem[o];
#pragma unroll 8
      for (int i = 1; i < p.warps; ++i) sum += smem[i * outputs + o];
      partial[slice * outputs + o] = sum;
    }
  }
  if (!releases_early) ptx::grid_launch_dependents();
  int parts = p.warps;  // partial sums per result that are still to be added in shared memory
  if (slices > 1) {
    if (gridDim.y > 1 && !tile::arrives_last(counters, p.slot)) return;
    __syncthreads();
    parts = outputs < kThreads ? kThreads / outputs : 1;
    const int part = outputs < kThreads ? threadIdx.x / outputs : 0, o = threadIdx.x - part * outputs;
    float sums[kMost] = {};
#pragma unroll 8
    for (int i = part; i < slices; i += parts) {
#pragma unroll
      for (int j = 0; j < kMost; ++j) {
        if (o + j * kThreads < outputs) sums[j] += ptx::ld_l2_4(partial + i * outputs + o + j * kThreads);
      }
    }
#pragma unroll
    for (int j = 0; j < kMost; ++j) {
      if (o + j * kThreads < outputs) smem[part * outputs + o + j * kThreads] = sums[j];
    }
    __syncthreads();
  }

  for (int o = threadIdx.x; o < outputs; o += kThreads) {
    const int col = o >> p.log2_rows, row = row0 + o - (col << p.log2_rows);
    if (col >= p.cols || row >= p.rows) continue;
    float v[8] = {smem[o]};
#pragma unroll 8
    for (int i = 1; i < parts; ++i) v[0] += smem[i * outputs + o];
    if (p.swapped) {
      tile::finish<float>(e, offset, row, col, {0, 1}, true, v);
    } else {
      tile::finish<float>(e, offset, col, row, {0, 1}, true, v);
    }
  }
}

}  // namespace hgemm::simt_gemv
