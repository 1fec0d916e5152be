// float32 GEMM with a short side, x, and a long operand W, on CUDA cores, in any alignment, on sm_80 and newer.
//
// A block computes a tile of W's rows over a slice of K. cp.async loads the stages of W and x through a pipeline in
// shared memory. Loads in flight then take no registers, so that there are enough of them for the full memory
// bandwidth. The copies are 16 bytes wide where the operand's alignment allows it, and 4 bytes otherwise; everything
// else is the same. Elements beyond the ends of W and x arrive as zeros.
//
// A lane computes a block of x's rows by W's rows, as in other SGEMM kernels. A short side has too few results for all
// lanes and warps, so these may also split k. Their sums are added by shuffles, then in shared memory, and, where
// slices of K go to different blocks, by the last block to arrive. The order of the additions is fixed, so the result
// has the same bits every time.
#pragma once

#include <cstdint>

#include "kernels/simt_skinny/config.h"
#include "ptx/cp_async.cuh"
#include "ptx/dependent_launch.cuh"
#include "ptx/global.cuh"
#include "ptx/shared.cuh"
#include "ptx/smem_addr.cuh"
#include "tile/counters.cuh"
#include "tile/epilogue.cuh"

namespace hgemm::simt_skinny {

/// The compile-time parameters of the kernel: Config, the memory order of W, and kNarrow, which is true if W does not
/// consist of aligned 16-byte chunks.
template <class Config, Major kMajor, bool kNarrow_>
struct Traits : Layout<Config, kMajor> {
  static constexpr bool kNarrow = kNarrow_;
#if defined(__CUDA_ARCH__) && (__CUDA_ARCH__ == 860 || __CUDA_ARCH__ == 890)
  static constexpr int kBlocks = 1;
#else
  static constexpr int kBlocks = Config::BLOCKS;
#endif
};

/// The run-time parameters. Strides count elements.
struct Params {
  const void *w, *x;
  int64_t ldw, x_row, x_k;         // leading dimension of W; strides of x from row to row and along k
  int64_t w_batch[2], x_batch[2];  // batch strides, outer and inner
  uint32_t batch_inner;            // extent of the inner batch dimension
  int rows, cols, k;               // W is (rows, k), x is (cols, k)
  int slice_k, slices;             // as in Schedule
  bool swapped;                    // the rows of D are those of W; otherwise its columns are
  bool wide_x;                     // x is K-major and consists of aligned 16-byte chunks
  int slot;                        // slot of the arrival counters, -1 for none (tile/counters.h)
  float* partial;                  // partial sums, (batches, tiles, slices, COLS, BN)
  tile::EpilogueParams epilogue;
};

// The arrival counters of output tiles whose slices of K go to different blocks. They are all zero whenever no kernel
// that uses them is running: the last block to arrive at a counter resets it. tile/counters.cu assigns them to
// launches.
static __device__ unsigned counters[tile::kSlots * tile::kMaxCounted];

/// Copies (ROWS, WIDTH) tiles of a matrix to shared memory, with a row pitch of PITCH floats. A copy is of kFloats
/// floats: 4 contiguous ones, or 1. In the latter case the elements of a row may be `step` elements apart.
template <int ROWS, int WIDTH, int PITCH, int kFloats>
class Copy {
  static constexpr int kPerRow = WIDTH / kFloats, kAtOnce = kThreads / kPerRow;  // copies per row; rows per iteration
  static constexpr int kTurns = (ROWS + kAtOnce - 1) / kAtOnce;                  // iterations
  static_assert(kThreads % kPerRow == 0);
  static __device__ __forceinline__ int row(uint32_t thread) { return thread / kPerRow; }
  static __device__ __forceinline__ int column(uint32_t thread) { return thread % kPerRow * kFloats; }

 public:
  /// Where this thread's copies begin: an address in the matrix, and a byte offset in shared memory.
  static __device__ __forceinline__ const float* from(const float* matrix, int64_t ld, int64_t step) {
    return matrix + row(threadIdx.x) * ld + column(threadIdx.x) * step;
  }
  static __device__ __forceinline__ uint32_t to() { return (row(threadIdx.x) * PITCH + column(threadIdx.x)) * 4; }

  /// Starts copying a tile. Only rows_left of its rows and width_left of its columns lie in the matrix; elsewhere zeros
  /// are written.
  static __device__ __forceinline__ void run(uint32_t to, const float* from, int64_t ld, int rows_left,
                                             int width_left) {
    if (kFloats == 4 && ROWS % kAtOnce == 0 && rows_left >= ROWS && width_left >= WIDTH) {
#pragma unroll
      for (int i = 0; i < kTurns; ++i) {
        ptx::cp_async_part_16(to + i * kAtOnce * PITCH * 4, from, 16);
        from += kAtOnce * ld;
      }
      return;
    }
    const uint32_t thread = ptx::opaque(threadIdx.x);  // recomputed each time, to leave registers for the sums
    const uint32_t bytes = 4 * max(min(width_left - column(thread), kFloats), 0);
    const int rows = min(rows_left, ROWS);
    int at = row(thread);
#pragma unroll 4
    for (int i = 0; i < kTurns; ++i) {
      const uint32_t inside = at < rows ? bytes : 0;
      if (ROWS % kAtOnce == 0 || at < ROWS) {
        if constexpr (kFloats == 4) {
          ptx::cp_async_part_16(to, from, inside);
        } else {
          ptx::cp_async_part_4(to, reinterpret_cast<uint64_t>(from), inside);
        }
      }
      at += kAtOnce;
      from += kAtOnce * ld;
      to += kAtOnce * PITCH * 4;
    }
  }
};

/// The part of one lane: its sums, and the part of a stage that it reads.
template <class Traits>
class Products {
  static constexpr int TM = Traits::TM, TN = Traits::TN, GM = Traits::GM, GN = Traits::GN, LK = Traits::LK;

 public:
  __device__ __forceinline__ Products() {
    const Place at(threadIdx.x);
    const int k = at.wk * Traits::kSlabs * Traits::kSlab + 4 * at.lk;
    w_ = Traits::kKMajor ? at.n * Traits::kPitchW + k : k * Traits::kPitchW + at.n;
    x_ = Traits::kStageW + at.m * Traits::kPitchX + k;
  }

  /// Multiplies the lane's parts of a stage and accumulates. A stage holds W, (BN, BK) or (BK, BN), then x, (COLS, BK).
  __device__ __forceinline__ void add(const float* stage) {
    const float *from_w = stage + w_, *from_x = stage + x_;
#pragma unroll 1
    for (int s = 0; s < Traits::kSlabs; ++s) {
      constexpr int kAtOnce = Traits::kStepK;
#pragma unroll 1
      for (int k0 = 0; k0 < 4; k0 += kAtOnce) {
        float w[TN][kAtOnce];
        if constexpr (Traits::kKMajor) {
#pragma unroll
          for (int i = 0; i < TN; ++i) load(w[i], from_w + GN * i * Traits::kPitchW);
        } else {
#pragma unroll
          for (int kk = 0; kk < kAtOnce; ++kk) {
#pragma unroll
            for (int i = 0; i < TN; i += 4) {
              float four[4];
              load(four, from_w + (k0 + kk) * Traits::kPitchW + GN * i);
#pragma unroll
              for (int c = 0; c < 4; ++c) w[i + c][kk] = four[c];
            }
          }
        }
#pragma unroll
        for (int j = 0; j < TM; ++j) {
          float x[kAtOnce];
          load(x, from_x + GM * j * Traits::kPitchX + k0);
#pragma unroll
          for (int kk = 0; kk < kAtOnce; ++kk) {
#pragma unroll
            for (int i = 0; i < TN; ++i) sums_[j][i] = fmaf(w[i][kk], x[kk], sums_[j][i]);
          }
        }
      }
      from_w += Traits::kKMajor ? Traits::kSlab : Traits::kSlab * Traits::kPitchW;
      from_x += Traits::kSlab;
    }
  }

  /// Adds the sums over the lanes that share k, stores the warp's sums to its part of `to`, (WK, COLS, BN), and sets
  /// this lane's sums to zero.
  __device__ __forceinline__ void store(float* to) {
    const Place at(ptx::opaque(threadIdx.x));  // recomputed, to save registers
    // This lane's first row of W: each exchange halves a lane's rows, as long as it has two or more.
    int first = 0;
    exchange<LK / 2, TN>(at.lk, &first);
    constexpr int kLeft = LK >= TN ? 1 : TN / LK, kAlike = LK >= TN ? LK / TN : 1;
    to += (at.wk * Traits::COLS + at.m) * Traits::kPitchSums + at.n;
    if (at.lk % kAlike == 0) {
#pragma unroll
      for (int j = 0; j < TM; ++j) {
#pragma unroll
        for (int i = 0; i < kLeft; ++i) to[GM * j * Traits::kPitchSums + row(first + i)] = sums_[j][i];
      }
    }
#pragma unroll
    for (int j = 0; j < TM; ++j) {
#pragma unroll
      for (int i = 0; i < TN; ++i) sums_[j][i] = 0.0f;
    }
  }

 private:
  /// The position of a lane: its index along k in the warp, its first row of x, its warp's index along k, and its first
  /// row of W in the tile.
  struct Place {
    int lk, m, wk, n;
    __device__ __forceinline__ explicit Place(int thread) {
      const int lane = thread % 32, warp = thread / 32, gn = lane / LK % GN;
      lk = lane % LK;
      m = lane / (LK * GN);
      wk = warp / Traits::WN;
      n = warp % Traits::WN * GN * TN + (Traits::kKMajor ? gn : 4 * gn);
    }
  };
  static __device__ __forceinline__ void load(float (&to)[4], const float* from) {
    const float4 v = *reinterpret_cast<const float4*>(from);
    to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
  }
  static __device__ __forceinline__ void load(float (&to)[2], const float* from) {
    const float2 v = *reinterpret_cast<const float2*>(from);
    to[0] = v.x, to[1] = v.y;
  }
  /// Rows of W from a lane's first row to its i-th row.
  static __device__ __forceinline__ int row(int i) { return Traits::kKMajor ? GN * i : i / 4 * 4 * GN + i % 4; }

  /// Adds kCount sums per row of x over the lanes that share k. At each step a lane passes half of its sums to the lane
  /// kApart away along k and receives that lane's other half; with one sum left, both keep the total. `first`: the
  /// index of the first row of W that this lane ends up with.
  template <int kApart, int kCount>
  __device__ __forceinline__ void exchange(int lk, int* first) {
    if constexpr (kApart > 0) {
      constexpr int kHalf = kCount / 2;
      const bool high = lk & kApart;
#pragma unroll
      for (int j = 0; j < TM; ++j) {
        if constexpr (kCount == 1) {
          sums_[j][0] += __shfl_xor_sync(~0u, sums_[j][0], kApart);
        } else {
#pragma unroll
          for (int i = 0; i < kHalf; ++i) {
            const float low = sums_[j][i], up = sums_[j][i + kHalf];
            sums_[j][i] = (high ? up : low) + __shfl_xor_sync(~0u, high ? low : up, kApart);
          }
        }
      }
      if (kCount > 1 && high) *first += kHalf;
      exchange<kApart / 2, (kCount > 1 ? kHalf : 1)>(lk, first);
    }
  }

  int w_, x_;  // where the lane's part of W and of x begins in a stage, in floats
  float sums_[TM][TN] = {};
};

__device__ __forceinline__ void add(float4* to, const float4& v) {
  to->x += v.x, to->y += v.y, to->z += v.z, to->w += v.w;
}

template <class Traits>
__global__ void __launch_bounds__(kThreads, Traits::kBlocks) kernel(const __grid_constant__ Params p) {
  constexpr int COLS = Traits::COLS, BN = Traits::BN, BK = Traits::BK, STAGES = Traits::STAGES;
  constexpr bool kKMajor = Traits::kKMajor;
  using CopyW = Copy<kKMajor ? BN : BK, kKMajor ? BK : BN, Traits::kPitchW, Traits::kNarrow ? 1 : 4>;
  using CopyX = Copy<COLS, BK, Traits::kPitchX, 4>;
  using CopyNarrowX = Copy<COLS, BK, Traits::kPitchX, 1>;
  extern __shared__ __align__(16) float smem[];  // (STAGES, kStage) floats; afterwards the sums

  const int64_t outer = blockIdx.z / p.batch_inner, inner = blockIdx.z - outer * p.batch_inner;
  const int row0 = blockIdx.x * BN, rows_left = static_cast<int>(ptx::opaque(static_cast<uint32_t>(p.rows - row0)));
  const float* const w =
      static_cast<const float*>(p.w) + outer * p.w_batch[0] + inner * p.w_batch[1] + row0 * (kKMajor ? p.ldw : 1);
  const float* const x = static_cast<const float*>(p.x) + outer * p.x_batch[0] + inner * p.x_batch[1];
  // Visits every group of four neighbouring rows of the tile, for every row of x.
  const auto for_fours = [&](const auto& visit) {
    for (int q = threadIdx.x; q < p.cols * (BN / 4); q += kThreads) visit(q / (BN / 4), q % (BN / 4) * 4);
  };
  const auto four = [&](int row, int n) -> float4& {
    return *reinterpret_cast<float4*>(smem + row * Traits::kPitchSums + n);
  };
  // Computed only when it is needed, to leave registers for the sums until then.
  const auto partial_sums = [&] {
    const int64_t tile = static_cast<int64_t>(ptx::opaque(blockIdx.z)) * gridDim.x + blockIdx.x;
    return p.partial + tile * p.slices * (COLS * BN);
  };

  const uint32_t to_w = ptx::opaque(CopyW::to());
  const uint32_t to_x = ptx::opaque(4 * Traits::kStageW + (p.wide_x ? CopyX::to() : CopyNarrowX::to()));
  Products<Traits> products;
  ptx::grid_dependency_wait();
  // One block per slice, or one block for all slices of a tile (tile/counters.cu says when).
#pragma unroll 1
  for (int slice = blockIdx.y; slice < p.slices; slice += gridDim.y) {
    const int begin = slice * p.slice_k, end = min(begin + p.slice_k, p.k);
    const float* from_w = ptx::opaque(CopyW::from(w + begin * (kKMajor ? 1 : p.ldw), p.ldw, 1));
    const float* from_x = x + begin * p.x_k;
    from_x = ptx::opaque(p.wide_x ? CopyX::from(from_x, p.x_row, 1) : CopyNarrowX::from(from_x, p.x_row, p.x_k));
    const auto fetch = [&](int stage, int left) {
      if (left > 0) {
        const uint32_t to = ptx::smem_addr(smem + stage * Traits::kStage);
        CopyW::run(to + to_w, from_w, p.ldw, kKMajor ? rows_left : left, kKMajor ? left : rows_left);
        if (p.wide_x) {
          CopyX::run(to + to_x, from_x, p.x_row, p.cols, left);
        } else {
          CopyNarrowX::run(to + to_x, from_x, p.x_row, p.cols, left);
        }
        from_w += BK * (kKMajor ? 1 : p.ldw);
        from_x += BK * p.x_k;
      }
      ptx::cp_async_commit();
    };
    if (slice != static_cast<int>(blockIdx.y)) __syncthreads();  // the sums of the previous slice have been read
#pragma unroll
    for (int s = 0; s < STAGES - 1; ++s) fetch(s, end - begin - s * BK);
    int stage = 0;
#pragma unroll 1
    for (int left = end - begin; left > 0; left -= BK) {
      ptx::cp_async_wait<STAGES - 2>();
      __syncthreads();
      fetch(stage == 0 ? STAGES - 1 : stage - 1, left - (STAGES - 1) * BK);
      products.add(smem + stage * Traits::kStage);
      stage = stage == STAGES - 1 ? 0 : stage + 1;
    }
    ptx::grid_launch_dependents();
    __syncthreads();
    products.store(smem);
    __syncthreads();
    float* const partial = partial_sums() + slice * (COLS * BN);
    for_fours([&](int m, int n) {
      float4 sum = four(m, n);
#pragma unroll
      for (int i = 1; i < Traits::WK; ++i) add(&sum, four(i * COLS + m, n));
      if (p.slices == 1) {
        four(m, n) = sum;
      } else {
        *reinterpret_cast<float4*>(partial + m * BN + n) = sum;
      }
    });
  }
  if (p.slices > 1) {
    if (gridDim.y == 1) {
      __syncthreads();
    } else if (!tile::arrives_last(counters, p.slot)) {
      return;
    }
    const float* const partial = partial_sums();
    for_fours([&](int m, int n) {
      float4 sum = ptx::ld_l2_16(partial + m * BN + n);
#pragma unroll 8
      for (int i = 1; i < p.slices; ++i) add(&sum, ptx::ld_l2_16(partial + i * (COLS * BN) + m * BN + n));
      four(m, n) = sum;
    });
  }
  __syncthreads();

  const tile::BatchOffset offset = tile::batch_offset(p.epilogue, ptx::opaque(blockIdx.z));
  const int outputs = p.cols * BN;
  for (int o = threadIdx.x; o < outputs; o += kThreads) {  // in D's memory order
    const int m = p.swapped ? o % p.cols : o / BN, n = p.swapped ? o / p.cols : o % BN;
    if (n >= rows_left) continue;
    float v[8] = {smem[m * Traits::kPitchSums + n]};
    if (p.swapped) {
      tile::finish<float>(p.epilogue, offset, row0 + n, m, {0, 1}, true, v);
    } else {
      tile::finish<float>(p.epilogue, offset, m, row0 + n, {0, 1}, true, v);
    }
  }
}

}  // namespace hgemm::simt_skinny
