// How a pass over float32 operands (split_pass.cu, sm90_split_scaled_pass.cu) reads them: a block reads 32 rows of
// kPiece elements of K, and each thread gets eight neighbours along K of four rows, whatever the memory order is.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "core/fast_divisor.h"
#include "tile/split_planes.h"

namespace hgemm::tile::split {

constexpr int kSplitThreads = 256, kSplitRows = 32;  // of a block
constexpr int kLaneK = kPiece / 32;                  // elements of K per lane
constexpr int kSplitWarps = kSplitThreads / 32, kRowsOfWarp = kSplitRows / kSplitWarps;

/// One operand in its original memory.
struct Source {
  const float* x;
  int64_t row, k_stride, batch[2];  // strides, in elements
  int32_t rows, k, ld, pieces;
  Parts parts;
  uint32_t flips;  // see Side
  bool wide;       // rows may be read 16 bytes at a time
  FastDivisor by_row_blocks, by_inner;
};

inline Source source_of(const Side& side) {
  const Planes& planes = side.planes;
  Source o{};
  o.x = static_cast<const float*>(side.x.data);
  o.row = side.row;
  o.k_stride = side.k_stride;
  for (int i = 0; i < 2; ++i) o.batch[i] = side.x.batch_stride[i];
  o.rows = static_cast<int32_t>(planes.rows);
  o.k = static_cast<int32_t>(planes.k);
  o.ld = static_cast<int32_t>(planes.ld);
  o.pieces = static_cast<int32_t>(planes.pieces);
  o.parts = side.parts;
  o.flips = side.flips;
  o.wide = side.is_wide;
  o.by_row_blocks = FastDivisor(static_cast<uint32_t>((planes.rows + kSplitRows - 1) / kSplitRows));
  o.by_inner = FastDivisor(static_cast<uint32_t>(planes.batch[1]));
  return o;
}

/// The groups of kSplitRows rows of an operand, over all matrices that have planes.
inline uint32_t row_blocks_of(const Planes& planes) {
  return static_cast<uint32_t>(planes.batch[0] * planes.batch[1] * ((planes.rows + kSplitRows - 1) / kSplitRows));
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

using Tile32 = float[kSplitRows][kPiece + 1];

/// The position of k in a row of the shared tile, which is used for operands whose rows are neighbours in memory. Each
/// group of eight k is permuted, so that elements that the lanes of a warp read together lie in different banks.
__device__ __forceinline__ int place_of(int k) {
  return (k & ~7) | ((k ^ k >> 5) & 7);
}

/// Reads a thread's elements of a row whose elements are neighbours along K. `ks`: the elements of the segment.
__device__ __forceinline__ void load_along_k(const Source& o, const RowBlock& at, const float* src, int row, int ks,
                                             float (&x)[kLaneK]) {
  const int lane = threadIdx.x % 32;
  const float* const from = src + row * o.row + lane * kLaneK;
  if (row < at.rows && o.wide && lane * kLaneK + kLaneK <= ks) {
    const float4 low = reinterpret_cast<const float4*>(from)[0], high = reinterpret_cast<const float4*>(from)[1];
    x[0] = low.x, x[1] = low.y, x[2] = low.z, x[3] = low.w;
    x[4] = high.x, x[5] = high.y, x[6] = high.z, x[7] = high.w;
  } else {
#pragma unroll
    for (int i = 0; i < kLaneK; ++i) x[i] = row < at.rows && lane * kLaneK + i < ks ? from[i] : 0.0f;
  }
}

/// An element of B' in row 2k + i and column 2n + j (real_form()).
__device__ __forceinline__ float with_sign(const Source& o, float part, int i, int j) {
  return __uint_as_float(__float_as_uint(part) ^ (o.flips >> (2 * j + i) & 1) << 31);
}

/// load_piece() for B of a complex product. A column of B is two rows here, of which a thread reads both at once.
__device__ __forceinline__ void load_complex_b(const Source& o, const RowBlock& at, const float* src, int ks,
                                               Tile32& tile, float (&x)[kRowsOfWarp][kLaneK]) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const bool is_along_k = o.k_stride == 1;
  if (!is_along_k) {
    // The real and the imaginary part of a column lie in two rows of the tile.
    __syncthreads();  // until the last segment has been read from the tile
    const float* const from = src + (lane & ~1) * o.row + (lane & 1);
#pragma unroll 8
    for (int k = warp; k < kPiece / 2; k += kSplitWarps) {
      tile[lane][place_of(k)] = 2 * k < ks && lane < at.rows ? from[2 * k * o.k_stride] : 0.0f;
    }
    __syncthreads();
  }
#pragma unroll
  for (int r = 0; r < kRowsOfWarp; r += 2) {
    const int row = warp * kRowsOfWarp + r;
    float parts[kLaneK];
    if (is_along_k) {
      load_along_k(o, at, src, row, ks, parts);
    } else {
#pragma unroll
      for (int i = 0; i < kLaneK; ++i) parts[i] = tile[row + i % 2][place_of(lane * (kLaneK / 2) + i / 2)];
    }
#pragma unroll
    for (int i = 0; i < kLaneK; ++i) {
      x[r][i] = with_sign(o, parts[i], i % 2, 0);
      x[r + 1][i] = with_sign(o, parts[i ^ 1], i % 2, 1);
    }
  }
}

/// Reads segment `piece` of the rows. Elements outside of the operand are zero. All threads of the block call it.
template <bool kComplex>
__device__ __forceinline__ void load_piece(const Source& o, const RowBlock& at, int piece, Tile32& tile,
                                           float (&x)[kRowsOfWarp][kLaneK]) {
  const int k0 = piece * kPiece, ks = min(o.k - k0, kPiece);
  const float* const src = at.x + k0 * o.k_stride;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if constexpr (kComplex) {
    if (o.parts == Parts::kComplexB) return load_complex_b(o, at, src, ks, tile, x);
  }
  if (o.k_stride == 1) {
#pragma unroll
    for (int r = 0; r < kRowsOfWarp; ++r) load_along_k(o, at, src, warp * kRowsOfWarp + r, ks, x[r]);
    return;
  }
  __syncthreads();  // until the last segment has been read from the tile
  if constexpr (kComplex) {
#pragma unroll 8
    for (int k = 2 * warp; k < kPiece; k += 2 * kSplitWarps) {
      float2 z = {0.0f, 0.0f};
      if (k < ks && lane < at.rows) z = *reinterpret_cast<const float2*>(src + lane * o.row + k * o.k_stride);
      tile[lane][place_of(k)] = z.x;
      tile[lane][place_of(k + 1)] = z.y;
    }
  } else {
#pragma unroll 8
    for (int k = warp; k < kPiece; k += kSplitWarps) {
      tile[lane][place_of(k)] = k < ks && lane < at.rows ? src[lane * o.row + k * o.k_stride] : 0.0f;
    }
  }
  __syncthreads();
#pragma unroll
  for (int r = 0; r < kRowsOfWarp; ++r) {
#pragma unroll
    for (int i = 0; i < kLaneK; ++i) x[r][i] = tile[warp * kRowsOfWarp + r][place_of(lane * kLaneK + i)];
  }
}

}  // namespace hgemm::tile::split
