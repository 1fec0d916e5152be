// One row of x against a long operand W, in any alignment, with sums in slices of K (core/slices.h).
//
// The kernel gives the bits that the tiled kernels give (Sums::kFourSlices): each of a block's four warps adds up one
// slice of K in one accumulator of mma.sync, 16 k at a time in ascending order. The 16 k of one mma.sync may be in any
// order, because the tensor core adds up their products at once.
//
// W goes from global memory straight into the A fragments of mma.sync; its rows are the rows of the instruction. Warps
// load W in aligned chunks, and keep DEPTH units of them in flight in registers. Where rows begin between the chunks'
// boundaries, lanes exchange neighbouring chunks by shuffles and shift them. x lies in shared memory.
#pragma once

#include <cstdint>

#include "core/convert.cuh"
#include "core/problem.h"
#include "core/slices.h"
#include "kernels/skinny/row.h"
#include "ptx/dependent_launch.cuh"
#include "ptx/global.cuh"
#include "ptx/mma.cuh"
#include "tile/chunk.cuh"
#include "tile/epilogue.cuh"

namespace hgemm::skinny {

/// The run-time parameters of a launch for one row. Strides count elements.
struct RowParams {
  const void *w, *x;
  int64_t ldw, x_row, x_k;         // leading dimension of W; strides of x (x_row is not used)
  int64_t w_batch[2], x_batch[2];  // batch strides, outer and inner
  uint32_t batch_inner;            // extent of the inner batch dimension
  int rows, cols, k;               // W is (rows, k), x is (1, k)
  bool swapped;                    // D is a column, not a row
  tile::EpilogueParams epilogue;
};

/// The number of elements from the preceding multiple of kBytes to `p`.
template <int kBytes>
__device__ __forceinline__ int elements_off(const void* p) {
  return static_cast<int>(reinterpret_cast<uint64_t>(p) % kBytes / 2);
}

/// The warp's part of a tile of W, for the k of one slice: kRows rows, and units of kUnit k.
///
///   load()       loads the chunks of an inner unit
///   multiply()   multiplies them with x
///   careful()    loads a unit element by element and multiplies it
///   inner_end()  the units before this one, except unit 0, are inner ones: their chunks lie between the first element
///                of W and its last one
template <class T, Major kMajor>
class RowOfSums;

/// K-major: a lane has four k, from 4 * (lane % 4) on, of rows lane / 4 and lane / 4 + 8, in chunks of 8 bytes.
template <class T>
class RowOfSums<T, Major::kK> {
 public:
  static constexpr int kRows = 16, kUnit = 64, DEPTH = kDepthOfRowK;
  struct Chunks {
    uint2 of_row[2][kUnit / 16];
    uint2 behind[2];  // the chunk behind the unit, for the last lane of four
  };

  __device__ __forceinline__ RowOfSums(const uint16_t* w, const uint16_t* x, const RowParams& p, int row0)
      : x_(x), k_(p.k) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = min(row0 + lane() / 4 + 8 * i, p.rows - 1);
      at_[i] = w + row * p.ldw + 4 * quad();
      skew_[i] = elements_off<8>(at_[i]);
    }
  }
  __device__ __forceinline__ int inner_end() const { return (k_ - 4) / kUnit; }
  __device__ __forceinline__ bool is_inner_first() const { return false; }

  __device__ __forceinline__ void load(Chunks& to, int u) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint16_t* const from = at_[i] - skew_[i] + u * kUnit;
#pragma unroll
      for (int g = 0; g < kUnit / 16; ++g) to.of_row[i][g] = ptx::ld_once_8(from + 16 * g);
      to.behind[i] = quad() == 3 && skew_[i] > 0 ? ptx::ld_once_8(from + kUnit - 12) : make_uint2(0, 0);
    }
  }
  __device__ __forceinline__ void multiply(const Chunks& chunks, int u) {
#pragma unroll
    for (int g = 0; g < kUnit / 16; ++g) {
      uint32_t a[4];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const uint2 low = chunks.of_row[i][g];
        // The chunk behind is the next lane's, or, behind the last one of four, the first lane's of the next 16 k.
        const bool is_last = g + 1 == kUnit / 16;
        const uint2 sent = quad() == 0 && !is_last ? chunks.of_row[i][is_last ? g : g + 1] : low;
        const int next = (lane() & ~3) | ((lane() + 1) & 3);
        uint2 high = {__shfl_sync(~0u, sent.x, next), __shfl_sync(~0u, sent.y, next)};
        if (is_last && quad() == 3) high = chunks.behind[i];
        const bool by_two = (skew_[i] & 2) != 0;
        const uint32_t first = by_two ? low.y : low.x, second = by_two ? high.x : low.y;
        const uint32_t third = by_two ? high.y : high.x;
        const int bits = (skew_[i] & 1) * 16;
        a[i] = __funnelshift_r(first, second, bits);
        a[2 + i] = __funnelshift_r(second, third, bits);
      }
      add(a, u * kUnit + 16 * g);
    }
  }
  __device__ __forceinline__ void careful(int u) {
#pragma unroll 1
    for (int g = 0; g < kUnit / 16; ++g) {
      uint32_t a[4];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const auto element = [&](int j) -> uint32_t {
          const int at = u * kUnit + 16 * g + j;
          return 4 * quad() + at < k_ ? ptx::ld_2(at_[i] + at) : 0;
        };
        a[i] = element(0) | element(1) << 16;
        a[2 + i] = element(2) | element(3) << 16;
      }
      add(a, u * kUnit + 16 * g);
    }
  }
  /// Stores the sums, of which four lanes have those of two rows.
  __device__ __forceinline__ void store(float* sums) const {
    if (quad() != 0) return;
    sums[lane() / 4] = acc_[0];
    sums[lane() / 4 + 8] = acc_[2];
  }

 private:
  static __device__ __forceinline__ int lane() { return static_cast<int>(threadIdx.x) % 32; }
  static __device__ __forceinline__ int quad() { return static_cast<int>(threadIdx.x) % 4; }
  __device__ __forceinline__ void add(const uint32_t (&a)[4], int k) {
    uint2 b = make_uint2(0, 0);
    if (lane() < 4) b = *reinterpret_cast<const uint2*>(x_ + k + 4 * quad());
    ptx::Mma<T>::m16n8k16(acc_, a, b.x, b.y);
  }

  const uint16_t* x_;
  const uint16_t* at_[2];
  int skew_[2], k_;
  float acc_[4] = {};
};

/// MN-major: a lane has eight rows, from 8 * (lane / 4) on, of four k, from 4 * (lane % 4) on, in chunks of 16 bytes. A
/// chunk begins up to seven rows before its first one, so eight rows of 64 are left to the next tile.
template <class T>
class RowOfSums<T, Major::kMN> {
 public:
  static constexpr int kRows = 56, kUnit = 16, DEPTH = kDepthOfRowMN;
  struct Chunks {
    uint4 of_k[4];
  };

  __device__ __forceinline__ RowOfSums(const uint16_t* w, const uint16_t* x, const RowParams& p, int row0)
      : x_(x), tile_(w + row0), ldw_(p.ldw), k_(p.k), row0_(row0), rows_(p.rows) {}
  __device__ __forceinline__ int inner_end() const {
    const int64_t room = (k_ - 1) * ldw_ + rows_ - row0_ - 64;  // of the last row of a unit
    return room < (kUnit - 1) * ldw_ ? 0 : static_cast<int>(min((room / ldw_ + 1) / kUnit, int64_t{k_ / kUnit}));
  }
  __device__ __forceinline__ bool is_inner_first() const { return row0_ > 0; }

  __device__ __forceinline__ void load(Chunks& to, int u) const {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const uint16_t* const row = row_of(u, j);
      to.of_k[j] = ptx::ld_once_16(row - elements_off<16>(row) + lane() / 4 * 8);
    }
  }
  __device__ __forceinline__ void multiply(const Chunks& chunks, int u) {
    uint4 k[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const uint4& low = chunks.of_k[j];
      const uint4 high = {__shfl_down_sync(~0u, low.x, 4), __shfl_down_sync(~0u, low.y, 4),
                          __shfl_down_sync(~0u, low.z, 4), __shfl_down_sync(~0u, low.w, 4)};
      k[j] = tile::shifted(low, high, elements_off<16>(row_of(u, j)));
    }
    add(k, u);
  }
  __device__ __forceinline__ void careful(int u) {
    uint4 k[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const uint16_t* const row = row_of(u, j);
      const auto element = [&](int i) -> uint32_t {
        const bool exists = u * kUnit + 4 * quad() + j < k_ && row0_ + lane() / 4 * 8 + i < rows_;
        return exists ? ptx::ld_2(row + lane() / 4 * 8 + i) : 0;
      };
      k[j] = make_uint4(element(0) | element(1) << 16, element(2) | element(3) << 16, element(4) | element(5) << 16,
                        element(6) | element(7) << 16);
    }
    add(k, u);
  }
  /// Stores the sums: four lanes have those of eight rows.
  __device__ __forceinline__ void store(float* sums) const {
    if (quad() != 0) return;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      sums[lane() / 4 * 8 + 2 * i] = acc_[i][0];
      sums[lane() / 4 * 8 + 2 * i + 1] = acc_[i][2];
    }
  }

 private:
  static __device__ __forceinline__ int lane() { return static_cast<int>(threadIdx.x) % 32; }
  static __device__ __forceinline__ int quad() { return static_cast<int>(threadIdx.x) % 4; }
  __device__ __forceinline__ const uint16_t* row_of(int u, int j) const {
    return tile_ + (u * kUnit + 4 * quad() + j) * ldw_;
  }
  __device__ __forceinline__ void add(const uint4 (&k)[4], int u) {
    uint2 b = make_uint2(0, 0);
    if (lane() < 4) b = *reinterpret_cast<const uint2*>(x_ + u * kUnit + 4 * quad());
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t k0 = tile::word(k[0], i), k1 = tile::word(k[1], i);
      const uint32_t k2 = tile::word(k[2], i), k3 = tile::word(k[3], i);
      const uint32_t a[4] = {__byte_perm(k0, k1, 0x5410), __byte_perm(k0, k1, 0x7632), __byte_perm(k2, k3, 0x5410),
                             __byte_perm(k2, k3, 0x7632)};
      ptx::Mma<T>::m16n8k16(acc_[i], a, b.x, b.y);
    }
  }

  const uint16_t* x_;
  const uint16_t* tile_;
  int64_t ldw_;
  int k_, row0_, rows_;
  float acc_[4][4] = {};
};

/// Launched with a block of kRowThreads threads for each tile, and the batch along gridDim.y. Its dynamic shared memory
/// holds x, filled up with zeros to whole steps of kSliceK.
template <class T, Major kMajor>
__global__ void __launch_bounds__(kRowThreads) row_kernel(const __grid_constant__ RowParams p) {
  using Sums = RowOfSums<T, kMajor>;
  constexpr int DEPTH = Sums::DEPTH, kUnitsPerStep = kSliceK / Sums::kUnit;
  extern __shared__ __align__(16) uint16_t x_of_slices[];
  __shared__ float sums[kSlices][kMajor == Major::kK ? 16 : 64];
  const int slice = threadIdx.x / 32, row0 = blockIdx.x * Sums::kRows;
  const int64_t outer = blockIdx.y / p.batch_inner, inner = blockIdx.y - outer * p.batch_inner;
  const auto* w = static_cast<const uint16_t*>(p.w) + outer * p.w_batch[0] + inner * p.w_batch[1];
  const auto* x = static_cast<const uint16_t*>(p.x) + outer * p.x_batch[0] + inner * p.x_batch[1];

  Sums mine(w, x_of_slices, p, row0);
  const int steps = (p.k + kSliceK - 1) / kSliceK, units = (p.k + Sums::kUnit - 1) / Sums::kUnit;
  const int first = steps * slice / kSlices * kUnitsPerStep;
  const int last = min(steps * (slice + 1) / kSlices * kUnitsPerStep, units);
  const int begin = first == 0 && !mine.is_inner_first() ? min(1, last) : first;
  const int end = max(min(last, mine.inner_end()), begin);

  ptx::grid_dependency_wait();
  typename Sums::Chunks chunks[DEPTH];
#pragma unroll
  for (int d = 0; d < DEPTH; ++d) {
    if (begin + d < end) mine.load(chunks[d], begin + d);
  }
  for (int i = threadIdx.x; i < steps * kSliceK; i += kRowThreads) {
    x_of_slices[i] = i < p.k ? ptx::ld_2(x + i * p.x_k) : 0;
  }
  __syncthreads();
  for (int u = first; u < begin; ++u) mine.careful(u);
  for (int u = begin; u < end; u += DEPTH) {
#pragma unroll
    for (int d = 0; d < DEPTH; ++d) {
      if (u + d >= end) break;
      mine.multiply(chunks[d], u + d);
      if (u + d + DEPTH < end) mine.load(chunks[d], u + d + DEPTH);
    }
  }
  for (int u = end; u < last; ++u) mine.careful(u);
  ptx::grid_launch_dependents();

  mine.store(sums[slice]);
  __syncthreads();
  const int row = threadIdx.x;
  if (row >= Sums::kRows || row0 + row >= p.rows) return;
  float v[8] = {((sums[0][row] + sums[1][row]) + sums[2][row]) + sums[3][row]};
  const tile::BatchOffset offset = tile::batch_offset(p.epilogue, blockIdx.y);
  const int of_w = row0 + row;
  tile::finish<T>(p.epilogue, offset, p.swapped ? of_w : 0, p.swapped ? 0 : of_w, {0, 1}, true, v);
}

}  // namespace hgemm::skinny
