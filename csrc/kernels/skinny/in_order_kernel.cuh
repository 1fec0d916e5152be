// At most eight rows of x against a long operand W, in any alignment, with the bits of the tiled kernels: sums in K's
// order, or in slices of K (core/slices.h).
//
// Each sum, or each slice of it, has one accumulator of mma.sync, which takes 16 k at a time in ascending order. The 16
// k of one mma.sync may be in any order, because the tensor core adds up their products at once.
//
// W goes from global memory straight into the A fragments of mma.sync; its rows are the rows of the instruction. x goes
// into the B fragments. One warp alone would wait for memory, so the warps of a slice take its units in turn. Each
// loads its next units into registers and forms the fragments. Then it waits for the accumulators, which the warp of
// the unit before leaves in shared memory, multiplies, and hands them on.
//
// Warps load aligned chunks. Where rows begin between the chunks' boundaries, lanes exchange neighbouring chunks by
// shuffles and shift them.
//
// Barrier of the hardware  threads  who arrives                          who waits
//   1 + warp               64       the warp of the unit before, once    the warp, before it reads the accumulators
//                                   it has left the accumulators
#pragma once

#include <cstdint>

#include "core/convert.cuh"
#include "core/problem.h"
#include "core/slices.h"
#include "kernels/skinny/in_order.h"
#include "ptx/dependent_launch.cuh"
#include "ptx/global.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/mma.cuh"
#include "tile/chunk.cuh"
#include "tile/epilogue.cuh"

namespace hgemm::skinny {

/// The run-time parameters of the kernel. Strides count elements.
struct InOrderParams {
  const void *w, *x;
  int64_t ldw, x_row, x_k;         // leading dimension of W; strides of x (x_k is 1)
  int64_t w_batch[2], x_batch[2];  // batch strides, outer and inner
  uint32_t batch_inner;            // extent of the inner batch dimension
  int rows, cols, k;               // W is (rows, k), x is (cols, k)
  int slices;                      // of K: 1 or kSlices
  bool swapped;                    // the rows of D are those of W; otherwise its columns are
  tile::EpilogueParams epilogue;
};

__device__ __forceinline__ int lane_of_warp() {
  return static_cast<int>(threadIdx.x) % 32;
}
__device__ __forceinline__ int lane_of_four() {
  return static_cast<int>(threadIdx.x) % 4;
}
/// The number of elements from the preceding multiple of kBytes to `p`.
template <int kBytes>
__device__ __forceinline__ int elements_off(const void* p) {
  return static_cast<int>(reinterpret_cast<uint64_t>(p) % kBytes / 2);
}

/// A row that is contiguous along K, of W or x. Four lanes share it: of each 16 k, a lane has the four from 4 * (lane %
/// 4) on. It loads the aligned chunk of 8 bytes that the first of them is in.
class KMajorRow {
 public:
  __device__ __forceinline__ explicit KMajorRow(const uint16_t* row)
      : at_(row + 4 * lane_of_four()), skew_(elements_off<8>(at_)) {}

  /// The chunk at k, and the one that is the first behind 16 k from there on, which the last lane of four needs.
  template <class Load>
  __device__ __forceinline__ uint2 chunk(int k, Load load) const {
    return load(at_ - skew_ + k);
  }
  template <class Load>
  __device__ __forceinline__ uint2 behind(int k, Load load) const {
    return lane_of_four() == 3 && skew_ > 0 ? load(at_ - skew_ + k + 4) : make_uint2(0, 0);
  }
  /// The lane's four elements out of its chunk. `next`: the chunk that the lane has of the next 16 k.
  __device__ __forceinline__ uint2 take(const uint2& low, const uint2& next) const {
    const uint2 sent = lane_of_four() == 0 ? next : low;
    const int from = (lane_of_warp() & ~3) | ((lane_of_warp() + 1) & 3);
    return shifted(low, {__shfl_sync(~0u, sent.x, from), __shfl_sync(~0u, sent.y, from)});
  }
  /// The same for the last 16 k of a unit. `behind`: of the function above.
  __device__ __forceinline__ uint2 take_last(const uint2& low, const uint2& behind) const {
    const int from = (lane_of_warp() & ~3) | ((lane_of_warp() + 1) & 3);
    uint2 high = {__shfl_sync(~0u, low.x, from), __shfl_sync(~0u, low.y, from)};
    if (lane_of_four() == 3) high = behind;
    return shifted(low, high);
  }
  /// The lane's four elements of the 16 k from `k` on, loaded one by one; zeros beyond the first `end` k.
  __device__ __forceinline__ uint2 careful(int k, int end) const {
    const auto element = [&](int i) -> uint32_t {
      return k + 4 * lane_of_four() + i < end ? ptx::ld_2(at_ + k + i) : 0;
    };
    return make_uint2(element(0) | element(1) << 16, element(2) | element(3) << 16);
  }

 private:
  __device__ __forceinline__ uint2 shifted(const uint2& low, const uint2& high) const {
    const bool by_two = (skew_ & 2) != 0;
    const uint32_t first = by_two ? low.y : low.x, second = by_two ? high.x : low.y, third = by_two ? high.y : high.x;
    const int bits = (skew_ & 1) * 16;
    return make_uint2(__funnelshift_r(first, second, bits), __funnelshift_r(second, third, bits));
  }

  const uint16_t* at_;
  int skew_;  // elements from the chunk's boundary to the lane's first element
};

/// x: a lane has row lane / 4, or zeros where x has fewer rows.
class RowOfX : public KMajorRow {
 public:
  __device__ __forceinline__ RowOfX(const uint16_t* x, const InOrderParams& p)
      : KMajorRow(x + (lane_of_warp() / 4 < p.cols ? lane_of_warp() / 4 * p.x_row : 0)),
        exists_(lane_of_warp() / 4 < p.cols) {}
  __device__ __forceinline__ uint2 or_zeros(const uint2& v) const { return exists_ ? v : make_uint2(0, 0); }

 private:
  bool exists_;
};

/// The fragments of a warp for units of a tile of W.
///
///   kRows, kUnit  rows of the tile; k of a unit
///   load()        loads the chunks of an inner unit
///   form()        forms the fragments of a unit out of its chunks
///   careful()     forms them out of elements loaded one by one
///   inner_end()   the units before this one, except unit 0, are inner ones: their chunks lie between the first element
///                 of an operand and its last one
///   store()       stores accumulators to (kInOrderCols, kSumRows) floats
template <Major kMajor>
class Units;

/// K-major: a lane has four k of rows lane / 4 and lane / 4 + 8, and of row lane / 4 of x.
template <>
class Units<Major::kK> {
 public:
  static constexpr int kRows = kInOrderRowsK, kSumRows = 16, kUnit = 64, kGroups = kUnit / 16, TILES = 1;
  static constexpr int DEPTH = kInOrderDepthK;
  struct Chunks {
    uint2 w[2][kGroups], x[kGroups], behind_w[2], behind_x;
  };
  struct Fragments {
    uint32_t a[kGroups][TILES][4];
    uint2 b[kGroups];
  };

  __device__ __forceinline__ Units(const uint16_t* w, const uint16_t* x, const InOrderParams& p, int row0)
      : w_{row_of(w, p, row0), row_of(w, p, row0 + 8)}, x_(x, p), k_(p.k) {}
  __device__ __forceinline__ int inner_end() const { return (k_ - 4) / kUnit; }

  __device__ __forceinline__ void load(Chunks& to, int u) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int g = 0; g < kGroups; ++g) to.w[i][g] = w_[i].chunk(u * kUnit + 16 * g, ptx::ld_once_8);
      to.behind_w[i] = w_[i].behind(u * kUnit + kUnit - 16, ptx::ld_once_8);
    }
#pragma unroll
    for (int g = 0; g < kGroups; ++g) to.x[g] = x_.chunk(u * kUnit + 16 * g, ptx::ld_8);
    to.behind_x = x_.behind(u * kUnit + kUnit - 16, ptx::ld_8);
  }
  __device__ __forceinline__ void form(Fragments& to, const Chunks& from, int) const {
    const auto take = [](const KMajorRow& row, const uint2(&of)[kGroups], const uint2& behind, int g) {
      return g + 1 < kGroups ? row.take(of[g], of[g + 1 < kGroups ? g + 1 : g]) : row.take_last(of[g], behind);
    };
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      set(to, g, take(w_[0], from.w[0], from.behind_w[0], g), take(w_[1], from.w[1], from.behind_w[1], g),
          take(x_, from.x, from.behind_x, g));
    }
  }
  __device__ __forceinline__ void careful(Fragments& to, int u) const {
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      const int k = u * kUnit + 16 * g;
      set(to, g, w_[0].careful(k, k_), w_[1].careful(k, k_), x_.careful(k, k_));
    }
  }
  static __device__ __forceinline__ void store(float* sums, const float (&acc)[TILES][4]) {
    float* const at = sums + 2 * lane_of_four() * kSumRows + lane_of_warp() / 4;
    at[0] = acc[0][0];
    at[kSumRows] = acc[0][1];
    at[8] = acc[0][2];
    at[kSumRows + 8] = acc[0][3];
  }

 private:
  static __device__ __forceinline__ KMajorRow row_of(const uint16_t* w, const InOrderParams& p, int row0) {
    return KMajorRow(w + min(row0 + lane_of_warp() / 4, p.rows - 1) * p.ldw);
  }
  __device__ __forceinline__ void set(Fragments& to, int g, const uint2& w0, const uint2& w1, const uint2& x) const {
    to.a[g][0][0] = w0.x;
    to.a[g][0][1] = w1.x;
    to.a[g][0][2] = w0.y;
    to.a[g][0][3] = w1.y;
    to.b[g] = x_.or_zeros(x);
  }

  KMajorRow w_[2];
  RowOfX x_;
  int k_;
};

/// MN-major: a lane has eight rows, from 8 * (lane / 4) on, of four k, from 4 * (lane % 4) on, in chunks of 16 bytes. A
/// chunk begins up to seven rows before its first one, so eight rows of 64 are left to the next tile.
template <>
class Units<Major::kMN> {
 public:
  static constexpr int kRows = kInOrderRowsMN, kSumRows = 64, kUnit = 32, kGroups = kUnit / 16, TILES = 4;
  static constexpr int DEPTH = kInOrderDepthMN;
  struct Chunks {
    uint4 w[kGroups][4];
    uint2 x[kGroups], behind_x;
  };
  struct Fragments {
    uint32_t a[kGroups][TILES][4];
    uint2 b[kGroups];
  };

  __device__ __forceinline__ Units(const uint16_t* w, const uint16_t* x, const InOrderParams& p, int row0)
      : x_(x, p), tile_(w + row0), ldw_(p.ldw), k_(p.k), row0_(row0), rows_(p.rows) {}
  __device__ __forceinline__ int inner_end() const {
    const int64_t room = (k_ - 1) * ldw_ + rows_ - row0_ - 64;  // behind the chunks of k = 0
    if (room < (kUnit - 1) * ldw_) return 0;
    return static_cast<int>(min((room / ldw_ + 1) / kUnit, static_cast<int64_t>((k_ - 4) / kUnit)));
  }

  __device__ __forceinline__ void load(Chunks& to, int u) const {
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const uint16_t* const row = at(u, g, j);
        to.w[g][j] = ptx::ld_once_16(row - elements_off<16>(row) + lane_of_warp() / 4 * 8);
      }
      to.x[g] = x_.chunk(u * kUnit + 16 * g, ptx::ld_8);
    }
    to.behind_x = x_.behind(u * kUnit + kUnit - 16, ptx::ld_8);
  }
  __device__ __forceinline__ void form(Fragments& to, const Chunks& from, int u) const {
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      uint4 k[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const uint4& low = from.w[g][j];
        const uint4 high = {__shfl_down_sync(~0u, low.x, 4), __shfl_down_sync(~0u, low.y, 4),
                            __shfl_down_sync(~0u, low.z, 4), __shfl_down_sync(~0u, low.w, 4)};
        k[j] = tile::shifted(low, high, elements_off<16>(at(u, g, j)));
      }
      const bool is_last = g + 1 == kGroups;
      set(to, g, k, is_last ? x_.take_last(from.x[g], from.behind_x) : x_.take(from.x[g], from.x[is_last ? g : g + 1]));
    }
  }
  __device__ __forceinline__ void careful(Fragments& to, int u) const {
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      uint4 k[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const uint16_t* const from = at(u, g, j) + lane_of_warp() / 4 * 8;
        const bool exists = u * kUnit + 16 * g + 4 * lane_of_four() + j < k_;
        const int left = exists ? rows_ - row0_ - lane_of_warp() / 4 * 8 : 0;
        const auto element = [&](int i) -> uint32_t { return i < left ? ptx::ld_2(from + i) : 0; };
        k[j] = make_uint4(element(0) | element(1) << 16, element(2) | element(3) << 16, element(4) | element(5) << 16,
                          element(6) | element(7) << 16);
      }
      set(to, g, k, x_.careful(u * kUnit + 16 * g, k_));
    }
  }
  static __device__ __forceinline__ void store(float* sums, const float (&acc)[TILES][4]) {
#pragma unroll
    for (int i = 0; i < TILES; ++i) {
      float* const at = sums + 2 * lane_of_four() * kSumRows + lane_of_warp() / 4 * 8 + 2 * i;
      at[0] = acc[i][0];
      at[kSumRows] = acc[i][1];
      at[1] = acc[i][2];
      at[kSumRows + 1] = acc[i][3];
    }
  }

 private:
  /// The first element that the tile has of the lane's k number j of 16 in unit u.
  __device__ __forceinline__ const uint16_t* at(int u, int g, int j) const {
    return tile_ + (u * kUnit + 16 * g + 4 * lane_of_four() + j) * ldw_;
  }
  __device__ __forceinline__ void set(Fragments& to, int g, const uint4 (&k)[4], const uint2& x) const {
#pragma unroll
    for (int i = 0; i < TILES; ++i) {
      const uint32_t k0 = tile::word(k[0], i), k1 = tile::word(k[1], i);
      const uint32_t k2 = tile::word(k[2], i), k3 = tile::word(k[3], i);
      to.a[g][i][0] = __byte_perm(k0, k1, 0x5410);
      to.a[g][i][1] = __byte_perm(k0, k1, 0x7632);
      to.a[g][i][2] = __byte_perm(k2, k3, 0x5410);
      to.a[g][i][3] = __byte_perm(k2, k3, 0x7632);
    }
    to.b[g] = x_.or_zeros(x);
  }

  RowOfX x_;
  const uint16_t* tile_;
  int64_t ldw_;
  int k_, row0_, rows_;
};

/// Launched with a block of kInOrderThreads threads for each tile, and the batch along gridDim.y.
template <class T, Major kMajor>
__global__ void __launch_bounds__(kInOrderThreads, kMajor == Major::kK ? 2 : 1)
    in_order_kernel(const __grid_constant__ InOrderParams p) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900  // it runs on Hopper alone, and would spill on older GPUs
  using Units = Units<kMajor>;
  constexpr int DEPTH = Units::DEPTH, TILES = Units::TILES, kSumRows = Units::kSumRows;
  constexpr int kUnitsPerStep = kSliceK / Units::kUnit, kWarps = kInOrderThreads / 32;
  __shared__ float sums[kSlices][kInOrderCols][kSumRows];
  __shared__ float4 handed_on[kSlices][TILES][32];
  static_assert(sizeof(sums) + sizeof(handed_on) <= kInOrderSmemBytes);
  const int warp = threadIdx.x / 32, lane = lane_of_warp(), row0 = blockIdx.x * Units::kRows;
  const int turns = kWarps / p.slices, slice = warp / turns, turn = warp % turns;  // warps of a slice; this warp's
  const int64_t outer = blockIdx.y / p.batch_inner, inner = blockIdx.y - outer * p.batch_inner;
  const auto* w = static_cast<const uint16_t*>(p.w) + outer * p.w_batch[0] + inner * p.w_batch[1];
  const auto* x = static_cast<const uint16_t*>(p.x) + outer * p.x_batch[0] + inner * p.x_batch[1];

  const Units units(w, x, p, row0);
  const int steps = (p.k + kSliceK - 1) / kSliceK, count = (p.k + Units::kUnit - 1) / Units::kUnit;
  const int first = steps * slice / p.slices * kUnitsPerStep;
  const int last = min(steps * (slice + 1) / p.slices * kUnitsPerStep, count);
  const int inner_end = units.inner_end();
  const auto is_inner = [=](int u) { return 0 < u && u < inner_end; };

  ptx::grid_dependency_wait();
  typename Units::Chunks chunks[DEPTH];
  const auto load = [&](typename Units::Chunks& to, int u) {
    if (u < last && is_inner(u)) units.load(to, u);
  };
#pragma unroll
  for (int d = 0; d < DEPTH; ++d) load(chunks[d], first + turn + d * turns);
  for (int begin = first + turn; begin < last; begin += DEPTH * turns) {
#pragma unroll
    for (int d = 0; d < DEPTH; ++d) {
      const int u = begin + d * turns;
      if (u >= last) break;
      typename Units::Fragments of;
      if (is_inner(u)) {
        units.form(of, chunks[d], u);
      } else {
        units.careful(of, u);
      }
      load(chunks[d], u + DEPTH * turns);
      float acc[TILES][4] = {};
      if (u > first) {
        ptx::barrier_sync(1 + warp, 64);
#pragma unroll
        for (int i = 0; i < TILES; ++i) {
          const float4 v = handed_on[slice][i][lane];
          acc[i][0] = v.x, acc[i][1] = v.y, acc[i][2] = v.z, acc[i][3] = v.w;
        }
      }
#pragma unroll
      for (int g = 0; g < Units::kGroups; ++g) {
#pragma unroll
        for (int i = 0; i < TILES; ++i) ptx::Mma<T>::m16n8k16(acc[i], of.a[g][i], of.b[g].x, of.b[g].y);
      }
      if (u + 1 == last) {
        Units::store(&sums[slice][0][0], acc);
        break;
      }
#pragma unroll
      for (int i = 0; i < TILES; ++i) {
        handed_on[slice][i][lane] = make_float4(acc[i][0], acc[i][1], acc[i][2], acc[i][3]);
      }
      ptx::barrier_arrive(1 + slice * turns + (turn + 1) % turns, 64);
    }
  }
  ptx::grid_launch_dependents();

  __syncthreads();
  const tile::BatchOffset offset = tile::batch_offset(p.epilogue, blockIdx.y);
  for (int i = threadIdx.x; i < p.cols * kSumRows; i += kInOrderThreads) {
    const int col = i / kSumRows, row = i % kSumRows;
    if (row >= Units::kRows || row0 + row >= p.rows) continue;
    float v[8] = {sums[0][col][row]};
    for (int s = 1; s < p.slices; ++s) v[0] += sums[s][col][row];
    tile::finish<T>(p.epilogue, offset, p.swapped ? row0 + row : col, p.swapped ? col : row0 + row, {0, 1}, true, v);
  }
#endif
}

}  // namespace hgemm::skinny
