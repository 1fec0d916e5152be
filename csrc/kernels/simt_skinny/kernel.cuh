// float32 products with a short side, x, and a long operand W, on CUDA cores: any alignment, any architecture.
//
// A block owns a tile of W's rows and a slice of K. Stages of W and of x come through a ring in shared memory, by
// cp.async: what is in flight takes no registers, so that there is enough of it for the memory's full rate. Chunks are
// of 16 bytes where an operand allows it and of 4 elsewhere: all else is the same. The ends of W and x arrive as zeros.
//
// A warp multiplies as SGEMM kernels do, a block of x's rows by W's rows in each lane, but its lanes may also share k,
// and so may warps: a short side has too few results for all of them. What they have is added up by shuffles, then in
// shared memory, then, where slices of K went to different blocks, by the last of these to arrive: in an order that
// depends on nothing.
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

/// What the kernel is compiled for. kNarrow: W is not made of aligned 16-byte chunks.
template <class Config, Major kMajor, bool kNarrow_>
struct Traits : Layout<Config, kMajor> {
  static constexpr bool kNarrow = kNarrow_;
#if defined(__CUDA_ARCH__) && (__CUDA_ARCH__ == 860 || __CUDA_ARCH__ == 890)
  static constexpr int kBlocks = 1;
#else
  static constexpr int kBlocks = Config::BLOCKS;
#endif
};

struct Params {
  const void *w, *x;
  int64_t ldw, x_row, x_k;
  int64_t w_batch[2], x_batch[2];
  uint32_t batch_inner;
  int rows, cols, k;
  int slice_k, slices;
  bool swapped;    // D's rows are W's
  bool wide_x;     // x consists of aligned 16-byte chunks along K
  int slot;        // of counters
  float* partial;  // (batches, tiles, slices, COLS, BN)
  tile::EpilogueParams epilogue;
};

// Zero whenever no kernel runs that uses them: the last of those that count at one sets it back. Which are whose:
// tile/counters.cu.
static __device__ unsigned counters[tile::kSlots * tile::kMaxCounted];

/// Copies (ROWS, WIDTH) pieces of a matrix to shared memory, kFloats at a time: 4, or 1, which may be `step` apart.
template <int ROWS, int WIDTH, int PITCH, int kFloats>
class Copy {
  static constexpr int kPerRow = WIDTH / kFloats, kAtOnce = kThreads / kPerRow;
  static constexpr int kTurns = (ROWS + kAtOnce - 1) / kAtOnce;
  static_assert(kThreads % kPerRow == 0);
  static __device__ __forceinline__ int row(uint32_t thread) { return thread / kPerRow; }
  static __device__ __forceinline__ int column(uint32_t thread) { return thread % kPerRow * kFloats; }

 public:
  /// Where this thread begins in the matrix and, in bytes, in shared memory.
  static __device__ __forceinline__ const float* from(const float* matrix, int64_t ld, int64_t step) {
    return matrix + row(threadIdx.x) * ld + column(threadIdx.x) * step;
  }
  static __device__ __forceinline__ uint32_t to() { return (row(threadIdx.x) * PITCH + column(threadIdx.x)) * 4; }

  /// Of the piece only rows_left and width_left are inside; zeros elsewhere.
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
    const uint32_t thread = ptx::opaque(threadIdx.x);  // computed each time: registers are the sums'
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

/// A lane's sums, and what it reads of a stage.
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

  /// `stage`: W, (BN, BK) or (BK, BN), then x, (COLS, BK).
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

  /// Leaves the warp's sums at (WK, COLS, BN), and this lane's at zero.
  __device__ __forceinline__ void store(float* to) {
    const Place at(ptx::opaque(threadIdx.x));  // not kept since the constructor
    int first = 0;  // of this lane's rows of W: lanes that share k halve them, as long as there are two
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
  /// Which part of a stage is a lane's.
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
  /// Where the i-th row of W of a lane lies behind its first one.
  static __device__ __forceinline__ int row(int i) { return Traits::kKMajor ? GN * i : i / 4 * 4 * GN + i % 4; }

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

  int w_, x_;  // where a lane reads in a stage
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
  extern __shared__ __align__(16) float smem[];  // (STAGES, kStage); at the end the warps' sums

  const int64_t outer = blockIdx.z / p.batch_inner, inner = blockIdx.z - outer * p.batch_inner;
  const int row0 = blockIdx.x * BN, rows_left = static_cast<int>(ptx::opaque(static_cast<uint32_t>(p.rows - row0)));
  const float* const w =
      static_cast<const float*>(p.w) + outer * p.w_batch[0] + inner * p.w_batch[1] + row0 * (kKMajor ? p.ldw : 1);
  const float* const x = static_cast<const float*>(p.x) + outer * p.x_batch[0] + inner * p.x_batch[1];
  // Each four neighbouring rows of the tile, for each row of x.
  const auto for_fours = [&](const auto& visit) {
    for (int q = threadIdx.x; q < p.cols * (BN / 4); q += kThreads) visit(q / (BN / 4), q % (BN / 4) * 4);
  };
  const auto four = [&](int row, int n) -> float4& {
    return *reinterpret_cast<float4*>(smem + row * Traits::kPitchSums + n);
  };
  // Computed when it is wanted: until then its registers are the sums'.
  const auto partial_sums = [&] {
    const int64_t tile = static_cast<int64_t>(ptx::opaque(blockIdx.z)) * gridDim.x + blockIdx.x;
    return p.partial + tile * p.slices * (COLS * BN);
  };

  const uint32_t to_w = ptx::opaque(CopyW::to());
  const uint32_t to_x = ptx::opaque(4 * Traits::kStageW + (p.wide_x ? CopyX::to() : CopyNarrowX::to()));
  Products<Traits> products;
  ptx::grid_dependency_wait();
  // A block to a slice, or one to them all (tile/counters.cu says when).
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
    if (slice != static_cast<int>(blockIdx.y)) __syncthreads();  // the sums of the slice before are read
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
  for (int o = threadIdx.x; o < outputs; o += kThreads) {  // in the order that D has them
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
