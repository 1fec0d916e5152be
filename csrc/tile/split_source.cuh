// How a pass over float32 operands (split_pass.cu, split_scaled_pass.cu) reads them: a block reads 32 rows of
// kPiece elements of K, and each thread gets eight neighbours along K of four rows, whatever the memory order is.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "core/fast_divisor.h"
#include "ptx/cp_async.cuh"
#include "ptx/smem_addr.cuh"
#include "tile/split_planes.h"

namespace hgemm::tile::split {

constexpr int kSplitThreads = 256, kSplitRows = 32;  // of a block
constexpr int kLaneK = kPiece / 32;                  // elements of K per lane
constexpr int kSplitWarps = kSplitThreads / 32, kRowsOfWarp = kSplitRows / kSplitWarps;

/// One operand in its original memory. Of B of a complex product, `rows` are the complex columns, with real and
/// imaginary parts as neighbours along K, as in A. Two rows of the planes are made of each (write_plane).
struct Source {
  const float* x;
  int64_t row, k_stride, batch[2];  // strides, in elements
  int32_t rows, k, ld, pieces;
  bool wide;  // rows may be read 16 bytes at a time
  bool is_complex_b;
  uint32_t flips;  // see Side
  FastDivisor by_row_blocks, by_inner;
};

inline Source source_of(const Side& side) {
  const Planes& planes = side.planes;
  Source o{};
  o.x = static_cast<const float*>(side.x.data);
  o.is_complex_b = side.parts == Parts::kComplexB;
  o.flips = side.flips;
  o.row = o.is_complex_b ? 2 * side.row : side.row;
  o.k_stride = side.k_stride;
  for (int i = 0; i < 2; ++i) o.batch[i] = side.x.batch_stride[i];
  o.rows = static_cast<int32_t>(o.is_complex_b ? planes.rows / 2 : planes.rows);
  o.k = static_cast<int32_t>(planes.k);
  o.ld = static_cast<int32_t>(planes.ld);
  o.pieces = static_cast<int32_t>(planes.pieces);
  o.wide = side.is_wide;
  o.by_row_blocks = FastDivisor(static_cast<uint32_t>((o.rows + kSplitRows - 1) / kSplitRows));
  o.by_inner = FastDivisor(static_cast<uint32_t>(planes.batch[1]));
  return o;
}

/// The groups of kSplitRows rows of an operand, over all matrices that have planes.
inline uint32_t row_blocks_of(const Side& side) {
  return static_cast<uint32_t>(side.planes.batch[0] * side.planes.batch[1]) * source_of(side).by_row_blocks.divisor();
}

/// The matrix among the planes and the first row of group `row_block`, and that row in memory.
struct RowBlock {
  int64_t matrix;
  int row0, rows;
  const float* x;
};
__device__ __forceinline__ RowBlock row_block_at(const Source& o, uint32_t row_block) {
  const uint32_t matrix = o.by_row_blocks.quotient(row_block);
  const uint32_t outer = o.by_inner.quotient(matrix), inner = matrix - outer * o.by_inner.divisor();
  const int row0 = static_cast<int>(row_block - matrix * o.by_row_blocks.divisor()) * kSplitRows;
  return {matrix, row0, min(o.rows - row0, kSplitRows), o.x + outer * o.batch[0] + inner * o.batch[1] + row0 * o.row};
}

/// A segment of K of 32 rows in shared memory, for operands whose rows are neighbours in memory: lines of all rows for
/// each k, or for each complex k. A line is stored in chunks of 16 bytes.
struct alignas(128) SharedPiece {
  float4 chunks[kSplitRows * kPiece / 4];
};

/// Where a line has its chunk number `chunk`. The chunks that eight lanes of a warp read together, of the lines of
/// different lanes, lie in different banks.
template <bool kComplex>
__device__ __forceinline__ int chunk_at(int line, int chunk) {
  constexpr int kChunks = kComplex ? kSplitRows / 2 : kSplitRows / 4, kLinesOfLane = kComplex ? kLaneK / 2 : kLaneK;
  return line * kChunks + (chunk ^ (line / kLinesOfLane & 7));
}

/// The rows of a plane.
__device__ __forceinline__ int64_t plane_rows(const Source& o) {
  return int64_t{o.rows} << o.is_complex_b;
}

/// Writes eight elements of a plane, which are `bits`, to row `row` of the planes of a matrix. `first` is where row 0
/// has them. Of B of a complex product it writes rows 2 * row, as (re, ±im), and 2 * row + 1, as (±im, ±re): those of
/// the real form (real_form()). The sign of each is a bit of `flips`.
template <bool kComplex, class T>
__device__ __forceinline__ void write_plane(const Source& o, T* first, int row, const uint4& bits) {
  if constexpr (kComplex) {
    if (o.is_complex_b) {
      const uint32_t even = (o.flips >> 1 & 1) << 31, odd = (o.flips >> 2 & 1) << 15 | (o.flips >> 3 & 1) << 31;
      const auto swapped = [odd](uint32_t pair) { return __funnelshift_l(pair, pair, 16) ^ odd; };
      uint4* const to = reinterpret_cast<uint4*>(first + int64_t{2 * row} * o.ld);
      to[0] = make_uint4(bits.x ^ even, bits.y ^ even, bits.z ^ even, bits.w ^ even);
      to[o.ld / 8] = make_uint4(swapped(bits.x), swapped(bits.y), swapped(bits.z), swapped(bits.w));
      return;
    }
  }
  *reinterpret_cast<uint4*>(first + int64_t{row} * o.ld) = bits;
}

/// Copies a segment of K of operands whose rows are neighbours in memory to `shared`. `src` is where the segment has
/// row 0, `ks` its length. Elements outside of the operand are zero.
template <bool kComplex>
__device__ __forceinline__ void copy_piece(const Source& o, const float* src, int rows, int ks, SharedPiece& shared) {
  constexpr int kReals = kComplex ? 2 : 1;  // of an element
  constexpr int kOfChunk = 4 / kReals, kChunks = kSplitRows / kOfChunk, kLines = kPiece / kReals;
  const int64_t line_stride = kReals * o.k_stride;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (o.wide && o.row == kReals) {
    const int chunk = threadIdx.x % kChunks;
    const int bytes = min(max(rows - chunk * kOfChunk, 0), kOfChunk) * kReals * static_cast<int>(sizeof(float));
    const float* from = src + threadIdx.x / kChunks * line_stride + chunk * 4;
    const uint32_t to = ptx::smem_addr(shared.chunks);
#pragma unroll
    for (int first = 0; first < kLines; first += kSplitThreads / kChunks) {
      const int line = first + static_cast<int>(threadIdx.x) / kChunks;
      ptx::cp_async_part_16(to + chunk_at<kComplex>(line, chunk) * 16, from, line * kReals < ks ? bytes : 0);
      from += kSplitThreads / kChunks * line_stride;
    }
    ptx::cp_async_wait_all();
    return;
  }
  float* const to = reinterpret_cast<float*>(shared.chunks);
#pragma unroll 8
  for (int line = warp; line < kLines; line += kSplitWarps) {
    float* const at = to + chunk_at<kComplex>(line, lane / kOfChunk) * 4 + lane % kOfChunk * kReals;
    const float* const from = src + lane * o.row + line * line_stride;
    const bool inside = line * kReals < ks && lane < rows;
    if constexpr (kComplex) {
      *reinterpret_cast<float2*>(at) = inside ? *reinterpret_cast<const float2*>(from) : make_float2(0.0f, 0.0f);
    } else {
      *at = inside ? *from : 0.0f;
    }
  }
}

/// Reads segment `piece` of the rows. Elements outside of the operand are zero. All threads of the block call it.
template <bool kComplex>
__device__ __forceinline__ void load_piece(const Source& o, const RowBlock& at, int piece, SharedPiece& shared,
                                           float (&x)[kRowsOfWarp][kLaneK]) {
  const int k0 = piece * kPiece, ks = min(o.k - k0, kPiece);
  const float* const src = at.x + k0 * o.k_stride;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (o.k_stride == 1) {
#pragma unroll
    for (int r = 0; r < kRowsOfWarp; ++r) {
      const int row = warp * kRowsOfWarp + r;
      const float* const from = src + row * o.row + lane * kLaneK;
      if (row < at.rows && o.wide && lane * kLaneK + kLaneK <= ks) {
        const float4 low = reinterpret_cast<const float4*>(from)[0], high = reinterpret_cast<const float4*>(from)[1];
        x[r][0] = low.x, x[r][1] = low.y, x[r][2] = low.z, x[r][3] = low.w;
        x[r][4] = high.x, x[r][5] = high.y, x[r][6] = high.z, x[r][7] = high.w;
      } else {
#pragma unroll
        for (int i = 0; i < kLaneK; ++i) x[r][i] = row < at.rows && lane * kLaneK + i < ks ? from[i] : 0.0f;
      }
    }
    return;
  }
  __syncthreads();  // until the last segment has been read from `shared`
  copy_piece<kComplex>(o, src, at.rows, ks, shared);
  __syncthreads();
  if constexpr (kComplex) {
#pragma unroll
    for (int i = 0; i < kLaneK; i += 2) {
#pragma unroll
      for (int r = 0; r < kRowsOfWarp; r += 2) {
        const float4 v = shared.chunks[chunk_at<true>((lane * kLaneK + i) / 2, (warp * kRowsOfWarp + r) / 2)];
        x[r][i] = v.x, x[r][i + 1] = v.y, x[r + 1][i] = v.z, x[r + 1][i + 1] = v.w;
      }
    }
  } else {
    static_assert(kRowsOfWarp == 4);
#pragma unroll
    for (int i = 0; i < kLaneK; ++i) {
      const float4 v = shared.chunks[chunk_at<false>(lane * kLaneK + i, warp)];
      x[0][i] = v.x, x[1][i] = v.y, x[2][i] = v.z, x[3][i] = v.w;
    }
  }
}

}  // namespace hgemm::tile::split
