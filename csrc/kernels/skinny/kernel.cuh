// GEMM with a short side: at most 16 rows of x against a long operand W, in any alignment, on sm_80 and newer.
//
// W goes from global memory straight into the A fragments of mma.sync, without shared memory: its rows are the 16 rows
// of the instruction. With a K-major W, the 16 bytes that a lane loads are eight k of one row. With an MN-major W they
// are eight rows at one k, and the lane interleaves the loads of neighbouring k in registers. Either way the k of a
// fragment are permuted, and x is loaded in the same permutation.
//
// The warps of a block split K, and the blocks of a cluster may split it as well. Only their sums go through shared
// memory. Each warp keeps DEPTH units of loads in flight, in registers. A unit is what a warp loads at a time: 64 k by
// 16 rows of a K-major W, 32 k by 64 rows of an MN-major W.
//
// Unaligned operands: W is still loaded in aligned 16-byte chunks, and the other index is shifted to match.
//  - In a K-major W, the rows of a tile are eight rows apart, so that they all have the same offset from a 16-byte
//    boundary. x is read from as many elements earlier.
//  - In an MN-major W, each warp takes the k of one residue modulo 8, which have the same offset. Its fragments begin
//    that many rows earlier.
#pragma once

#include "core/convert.cuh"
#include "core/problem.h"
#include "kernels/skinny/config.h"
#include "ptx/cluster.cuh"
#include "ptx/dependent_launch.cuh"
#include "ptx/global.cuh"
#include "ptx/mma.cuh"
#include "ptx/smem_addr.cuh"
#include "tile/chunk.cuh"
#include "tile/epilogue.cuh"

namespace hgemm::skinny {

using tile::off_grid, tile::word;

/// The compile-time parameters of the kernel: Config, element type, memory order of W, alignment.
template <class Config_, class T_, Major kMajor_, bool kNarrow_>
struct Traits : Config_ {
  using T = T_;
  static constexpr Major kMajor = kMajor_;   // of W
  static constexpr bool kNarrow = kNarrow_;  // the operands are not ShortSide::wide
  static constexpr bool kKMajor = kMajor == Major::kK;
  static constexpr int TILES = kKMajor ? 1 : 4;   // blocks of 16 rows (one mma.sync) in a unit
  static constexpr int kSteps = kKMajor ? 2 : 1;  // steps of 32 k in a unit
  static constexpr int kRows = 16 * TILES, kBlocks = Config_::COLS / 8;
  static constexpr int kLoads = 2 * TILES * kSteps;  // 16-byte chunks of W that a lane loads in a unit
  // Unaligned chunks of x take twice the registers. With a K-major W, fewer of them are therefore in flight, and two
  // blocks per SM compensate for that.
  static constexpr int DEPTH = kKMajor ? Config_::kDepthK : Config_::kDepthMN;
  static constexpr int DEPTH_X = kNarrow && kKMajor ? 1 : DEPTH;
  static constexpr int kMinBlocks = kNarrow && kKMajor ? 2 : 1;
  // Pitch, in floats, of the sums in shared memory. The padding avoids most bank conflicts when fragments are stored.
  static constexpr int kSumStride = kRows + (kKMajor ? 4 : 1);
  static constexpr int kSmemBytes = Config_::WARPS * Config_::COLS * kSumStride * 4;
};

/// The run-time parameters. Strides count elements.
struct Params {
  const void *w, *x;
  int64_t ldw, x_row, x_k;         // leading dimension of W; strides of x from row to row and along k
  int64_t w_batch[2], x_batch[2];  // batch strides, outer and inner
  uint32_t batch_inner;            // extent of the inner batch dimension
  int rows, cols, k;               // W is (rows, k), x is (cols, k)
  int tile_rows, splits;           // as in Schedule
  bool swapped;                    // the rows of D are those of W; otherwise its columns are
  bool interleaved;                // as in Schedule
  bool releases_early;             // as in Schedule
  tile::EpilogueParams epilogue;
};

/// Returns `p`, but hides its value from the compiler, which would otherwise compute the address again at every use.
template <class T>
__device__ __forceinline__ const T* opaque(const T* p) {
  asm("" : "+l"(p));
  return p;
}

/// Loads elements lo..hi-1 of the aligned 16-byte chunk at `p`. The other elements become zeros; their memory is not
/// accessed. kOnce: the data is read only once (ptx::ld_once_16).
template <bool kOnce>
__device__ __forceinline__ uint4 load_part(const uint16_t* p, int lo, int hi) {
  if (lo <= 0 && hi >= 8) return kOnce ? ptx::ld_once_16(p) : ptx::ld_16(p);
  uint32_t words[4] = {};
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    if (lo <= i && i < hi) words[i / 2] |= static_cast<uint32_t>(ptx::ld_2(p + i)) << i % 2 * 16;
  }
  return make_uint4(words[0], words[1], words[2], words[3]);
}

/// The warp's part of a tile of W: loads the chunks of a unit, and forms fragments of them.
///
///   shift()         elements by which chunks begin before a row's first element (unaligned, K-major)
///   row_shift()     rows by which fragments begin before the tile's first row (unaligned, MN-major)
///   units()         the number of units along K
///   position(u)     where unit u begins along K
///   load()          loads the chunks of the unit that begins at k
///   fragment()      forms the A fragment of one mma.sync
///   row_of(), kHalf which rows of the tile the fragment's rows are
template <class Traits, Major kMajor = Traits::kMajor>
class Weights;

/// K-major: a lane loads eight k, starting at 8 * (lane % 4), of rows lane / 4 and lane / 4 + 8 of the tile.
template <class Traits>
class Weights<Traits, Major::kK> {
  static constexpr bool kNarrow = Traits::kNarrow;
  using Chunks = uint4[Traits::kLoads];

 public:
  /// `row0`: the tile's first row; `step`: rows of W from one row of the tile to the next.
  __device__ __forceinline__ Weights(const uint16_t* w, const Params& p, int row0, int step)
      : shift_(kNarrow ? off_grid(w + row0 * p.ldw) : 0) {
    const int lane = threadIdx.x % 32;
    first_ = lane % 4 * 8;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = row0 + (lane / 4 + 8 * i) * step;
      row_[i] = opaque(w + (row < p.rows ? row : row0) * p.ldw + first_ - shift_);
    }
    end_ = p.k + shift_ - first_;
  }
  /// Elements from the 16-byte boundary to a row's first element. Positions along K count from that boundary.
  __device__ __forceinline__ int shift() const { return shift_; }
  __device__ __forceinline__ int row_shift() const { return 0; }
  /// Where unit u begins along K.
  static __device__ __forceinline__ int position(int u) { return u * 32 * Traits::kSteps; }
  __device__ __forceinline__ int units(const Params& p) const {
    return (p.k + shift_ + 32 * Traits::kSteps - 1) / (32 * Traits::kSteps);
  }
  /// Units 1 to inner_end() - 1 are inner units: all their chunks, and those of an unaligned x, lie within rows.
  __device__ __forceinline__ int inner_end(const Params& p) const { return (p.k + shift_ - 8) / (32 * Traits::kSteps); }
  /// kInner: the unit is an inner unit, whose chunks need no bounds checks.
  template <bool kInner>
  __device__ __forceinline__ void load(Chunks& to, int k) const {
#pragma unroll
    for (int s = 0; s < Traits::kSteps; ++s) {
      const int at = k + 32 * s;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        uint4& chunk = to[2 * s + i];
        if (kInner) {
          chunk = ptx::ld_once_16(row_[i] + at);
          continue;
        }
        chunk = make_uint4(0, 0, 0, 0);
        if (at >= end_) continue;
        chunk =
            kNarrow ? load_part<true>(row_[i] + at, shift_ - first_ - at, end_ - at) : ptx::ld_once_16(row_[i] + at);
      }
    }
  }
  static __device__ __forceinline__ void fragment(uint32_t (&a)[4], const Chunks& chunks, int step, int, int half) {
    const uint4 &low = chunks[2 * step], &high = chunks[2 * step + 1];
    a[0] = half ? low.z : low.x;
    a[1] = half ? high.z : high.x;
    a[2] = half ? low.w : low.y;
    a[3] = half ? high.w : high.y;
  }
  /// The row of the tile that this lane's first fragment row, lane / 4, of block i is. Its second one, lane / 4 + 8, is
  /// kHalf rows further.
  static constexpr int kHalf = 8;
  static __device__ __forceinline__ int row_of(int i) { return 16 * i + threadIdx.x % 32 / 4; }

 private:
  const uint16_t* row_[2];
  int shift_, first_, end_;
};

/// MN-major: a lane loads eight rows, starting at 8 * (lane / 4), at each of its eight k of the unit.
template <class Traits>
class Weights<Traits, Major::kMN> {
  static constexpr bool kNarrow = Traits::kNarrow;
  static constexpr int kStride = kNarrow ? 8 : 1;  // between consecutive k of a warp
  using Chunks = uint4[Traits::kLoads];

 public:
  __device__ __forceinline__ Weights(const uint16_t* w, const Params& p, int row0, int) : ldw_(kStride * p.ldw) {
    const int lane = threadIdx.x % 32, residue = kNarrow ? threadIdx.x / 32 % 8 : 0;
    const int k0 = lane % 4 * 8 * kStride + residue;
    const uint16_t* at = w + residue * p.ldw + row0;
    row_shift_ = kNarrow ? off_grid(at) : 0;
    const int row = row0 + lane / 4 * 8 - row_shift_;
    lo_ = -row;
    hi_ = p.rows - row;
    at_ = opaque(w + k0 * p.ldw + row);
    end_ = (p.k - k0 + kStride - 1) / kStride;
  }
  __device__ __forceinline__ int shift() const { return 0; }
  __device__ __forceinline__ int row_shift() const { return row_shift_; }
  static __device__ __forceinline__ int position(int u) { return u * 32; }
  __device__ __forceinline__ int units(const Params& p) const { return (p.k + 32 * kStride - 1) / (32 * kStride); }
  template <bool>
  __device__ __forceinline__ void load(Chunks& to, int k) const {
    const uint16_t* from = at_ + k * ldw_;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      to[j] = make_uint4(0, 0, 0, 0);
      if (k + j >= end_ || hi_ <= 0) continue;
      to[j] = kNarrow ? load_part<true>(from + j * ldw_, lo_, hi_) : ptx::ld_once_16(from + j * ldw_);
    }
  }
  static __device__ __forceinline__ void fragment(uint32_t (&a)[4], const Chunks& chunks, int, int i, int half) {
    const uint32_t k0 = word(chunks[4 * half], i), k1 = word(chunks[4 * half + 1], i);
    const uint32_t k2 = word(chunks[4 * half + 2], i), k3 = word(chunks[4 * half + 3], i);
    a[0] = __byte_perm(k0, k1, 0x5410);
    a[1] = __byte_perm(k0, k1, 0x7632);
    a[2] = __byte_perm(k2, k3, 0x5410);
    a[3] = __byte_perm(k2, k3, 0x7632);
  }
  static constexpr int kHalf = 1;
  static __device__ __forceinline__ int row_of(int i) { return threadIdx.x % 32 / 4 * 8 + 2 * i; }

 private:
  const uint16_t* at_;
  int64_t ldw_;
  int row_shift_, lo_, hi_, end_;
};

/// The warp's part of x, with the k in the same order as in W's fragments. A lane loads row lane / 4 of each block of
/// eight rows.
template <class Traits>
class Activations {
  static constexpr bool kNarrow = Traits::kNarrow;
  static constexpr int kStride = kNarrow && !Traits::kKMajor ? 8 : 1;

 public:
  /// Eight k of a row. Where x is aligned, `low` holds them. Otherwise `low` and `high` hold the two aligned
  /// chunks that cover the eight elements, or one element in each of their words. They are combined only when they are
  /// used (take()), as combining them earlier would wait for the loads.
  struct Chunk {
    uint4 low, high;
  };
  using Chunks = Chunk[Traits::kSteps * Traits::kBlocks];

  __device__ __forceinline__ Activations(const uint16_t* x, const Params& p, int shift) : p_(p) {
    const int lane = threadIdx.x % 32, residue = kStride == 1 ? 0 : threadIdx.x / 32 % 8;
    const int k0 = lane % 4 * 8 * kStride + residue - shift;
    at_ = opaque(x + lane / 4 * p.x_row + k0 * p.x_k);
    begin_ = -k0;
    end_ = p.k - k0;
    skew_ = tile::off_grid(at_);  // the same in every eighth row
  }
  /// True if the elements of a row that a warp needs are contiguous in memory.
  __device__ __forceinline__ bool in_chunks() const { return kStride == 1 && p_.x_k == 1; }
  /// Loads the chunks of the unit that begins at k. Rows beyond the last one of x give zeros. kInner: no chunk reaches
  /// beyond the ends of a row.
  template <bool kInner>
  __device__ __forceinline__ void load(Chunks& to, int k) const {
    const int row = threadIdx.x % 32 / 4;
#pragma unroll
    for (int s = 0; s < Traits::kSteps; ++s) {
      const int at = (k + 32 * s) * kStride;
#pragma unroll
      for (int b = 0; b < Traits::kBlocks; ++b) {
        Chunk& chunk = to[s * Traits::kBlocks + b];
        const bool inside = row + 8 * b < p_.cols;
        const uint16_t* from = at_ + 8 * b * p_.x_row + at * p_.x_k;
        chunk.low = chunk.high = make_uint4(0, 0, 0, 0);
        if (!inside) continue;
        if constexpr (!kNarrow) {
          if (at < end_) chunk.low = ptx::ld_16(from);
        } else if (kInner && in_chunks()) {
          chunk.low = ptx::ld_16(from - skew_);
          chunk.high = ptx::ld_16(from - skew_ + 8);
        } else if (in_chunks()) {
          const int first = at - skew_;
          chunk.low = load_part<false>(from - skew_, begin_ - first, end_ - first);
          if (skew_ > 0) chunk.high = load_part<false>(from - skew_ + 8, begin_ - first - 8, end_ - first - 8);
        } else {
          const auto element = [&](int i) -> uint32_t {
            const int e = at + i * kStride;
            return kInner || (begin_ <= e && e < end_) ? ptx::ld_2(from + i * kStride * p_.x_k) : 0;
          };
          chunk.low = make_uint4(element(0), element(1), element(2), element(3));
          chunk.high = make_uint4(element(4), element(5), element(6), element(7));
        }
      }
    }
  }

  /// The eight elements of a loaded chunk, in order.
  __device__ __forceinline__ uint4 take(const Chunk& chunk) const {
    if (!kNarrow) return chunk.low;
    const uint4 &low = chunk.low, &high = chunk.high;
    if (in_chunks()) return tile::shifted(low, high, skew_);
    return make_uint4(low.x | low.y << 16, low.z | low.w << 16, high.x | high.y << 16, high.z | high.w << 16);
  }

 private:
  const Params& p_;
  const uint16_t* at_;
  int begin_, end_;  // where the row begins and ends along k, relative to at_
  int skew_;         // elements from a 16-byte boundary to at_
};

template <class Traits>
__global__ void __launch_bounds__(Traits::kThreads, Traits::kMinBlocks) kernel(const __grid_constant__ Params p) {
  using T = typename Traits::T;
  using Weights = Weights<Traits>;
  using Activations = Activations<Traits>;
  constexpr int DEPTH = Traits::DEPTH, DEPTH_X = Traits::DEPTH_X, WARPS = Traits::WARPS;
  extern __shared__ __align__(16) float sums[];  // (WARPS, COLS, kSumStride)
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int64_t outer = blockIdx.z / p.batch_inner, inner = blockIdx.z - outer * p.batch_inner;
  const auto* w_origin = static_cast<const uint16_t*>(p.w) + outer * p.w_batch[0] + inner * p.w_batch[1];
  const auto* x_origin = static_cast<const uint16_t*>(p.x) + outer * p.x_batch[0] + inner * p.x_batch[1];

  const int tile = blockIdx.x, split = blockIdx.y, row_step = p.interleaved ? 8 : 1;
  const int row0 = p.interleaved ? tile / 8 * 8 * p.tile_rows + tile % 8 : tile * p.tile_rows;
  // All blocks of the cluster return here, so none waits for another. Of the last eight interleaved tiles some may have
  // no rows.
  if (row0 >= p.rows) return;
  const Weights weights(w_origin, p, row0, row_step);
  const Activations activations(x_origin, p, weights.shift());

  // The units along K go to the warps of all splits in turn. Where each of eight warps has its own residue of k, these
  // eight take the same unit.
  constexpr bool kByResidue = Traits::kNarrow && !Traits::kKMajor;
  const int units = weights.units(p);
  const int stride = kByResidue ? p.splits * (WARPS / 8) : p.splits * WARPS;
  const int first = kByResidue ? split * (WARPS / 8) + warp / 8 : split * WARPS + warp;

  // In an unaligned K-major W, loads at the ends of rows take many instructions. The units there come last, one by one.
  constexpr bool kInner = Traits::kNarrow && Traits::kKMajor;
  int begin = first, end = units;
  if constexpr (kInner) {
    begin = first == 0 ? stride : first;
    end = weights.inner_end(p);
  }

  uint4 w[DEPTH][Traits::kLoads];
  typename Activations::Chunks x[DEPTH_X];
  const auto load_w = [&](int d, int u) {
    if (!kInner || u < end) weights.template load<kInner>(w[d], Weights::position(u));
  };
  const auto load_x = [&](int d, int u) {
    if (!kInner || u < end) activations.template load<kInner>(x[d % DEPTH_X], Weights::position(u));
  };
  ptx::grid_dependency_wait();
#pragma unroll
  for (int d = 0; d < DEPTH; ++d) load_w(d, begin + d * stride);
#pragma unroll
  for (int d = 0; d < DEPTH_X; ++d) load_x(d, begin + d * stride);

  float acc[Traits::TILES][Traits::kBlocks][4] = {};
  const auto multiply = [&](int d) {
#pragma unroll
    for (int s = 0; s < Traits::kSteps; ++s) {
      uint4 taken[Traits::kBlocks];
#pragma unroll
      for (int b = 0; b < Traits::kBlocks; ++b) taken[b] = activations.take(x[d % DEPTH_X][s * Traits::kBlocks + b]);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int i = 0; i < Traits::TILES; ++i) {
          uint32_t a[4];
          Weights::fragment(a, w[d], s, i, half);
#pragma unroll
          for (int b = 0; b < Traits::kBlocks; ++b) {
            ptx::Mma<T>::m16n8k16(acc[i][b], a, word(taken[b], 2 * half), word(taken[b], 2 * half + 1));
          }
        }
      }
    }
  };
  for (int u = begin; u < end; u += DEPTH * stride) {
#pragma unroll
    for (int d = 0; d < DEPTH; ++d) {
      if (u + d * stride >= end) break;
      multiply(d);
      load_w(d, u + (d + DEPTH) * stride);
      load_x(d, u + (d + DEPTH_X) * stride);
    }
  }
  if constexpr (kInner) {
#pragma unroll 1
    for (int u = first; u < units; u += stride) {
      if (begin <= u && u < end) continue;
      weights.template load<false>(w[0], Weights::position(u));
      activations.template load<false>(x[0], Weights::position(u));
      multiply(0);
    }
  }
  if (p.releases_early) ptx::grid_launch_dependents();

  const int rows_in_tile = p.tile_rows;
#pragma unroll
  for (int i = 0; i < Traits::TILES; ++i) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = Weights::row_of(i) + h * Weights::kHalf - weights.row_shift();
      if (row < 0 || row >= rows_in_tile) continue;
#pragma unroll
      for (int b = 0; b < Traits::kBlocks; ++b) {
        float* const at = sums + (warp * Traits::COLS + 8 * b + lane % 4 * 2) * Traits::kSumStride + row;
        at[0] = acc[i][b][2 * h];
        at[Traits::kSumStride] = acc[i][b][2 * h + 1];
      }
    }
  }
  __syncthreads();

  const tile::BatchOffset offset = tile::batch_offset(p.epilogue, blockIdx.z);
  const auto finish = [&](int row, int col, float sum) {
    if (row >= p.rows) return;
    float v[8] = {sum};
    if (p.swapped) {
      tile::finish<T>(p.epilogue, offset, row, col, {0, 1}, true, v);
    } else {
      tile::finish<T>(p.epilogue, offset, col, row, {0, 1}, true, v);
    }
  };
  const int outputs = p.cols * rows_in_tile;
  for (int o = threadIdx.x; o < outputs; o += Traits::kThreads) {
    const int col = o / rows_in_tile, row = o - col * rows_in_tile;
    float* const at = sums + col * Traits::kSumStride + row;
    float sum = at[0];
#pragma unroll
    for (int i = 1; i < WARPS; ++i) sum += at[i * Traits::COLS * Traits::kSumStride];
    if (p.splits == 1) {
      finish(row0 + row * row_step, col, sum);
    } else {
      at[0] = sum;
    }
  }
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  if (p.splits == 1) return;
  ptx::cluster_sync();
  for (int o = threadIdx.x + split * Traits::kThreads; o < outputs; o += p.splits * Traits::kThreads) {
    const int col = o / rows_in_tile, row = o - col * rows_in_tile;
    const uint32_t at = ptx::smem_addr(sums + col * Traits::kSumStride + row);
    float sum = 0.0f;
    for (int r = 0; r < p.splits; ++r) sum += ptx::cluster_load_4(ptx::cluster_map(at, r));
    finish(row0 + row * row_step, col, sum);
  }
  // Waits until the other blocks of the cluster have read this block's sums from its shared memory. A relaxed arrival
  // is enough: a block arrives after it has used what it read.
  ptx::cluster_arrive_relaxed();
  ptx::cluster_wait();
#endif
}

}  // namespace hgemm::skinny
