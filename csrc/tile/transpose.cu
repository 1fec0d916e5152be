// The kernel that transposes bytes. It is bound by bandwidth.
#include "tile/transpose.h"

#include <cuda_runtime.h>

#include "core/chip.h"
#include "core/fast_divisor.h"
#include "core/launch.cuh"
#include "ptx/dependent_launch.cuh"
#include "ptx/global.cuh"
#include "tile/transpose_bytes.cuh"

namespace hgemm::tile {
namespace {

constexpr int kTile = 128;  // rows and columns of a block's tile: whole lines of both matrices
constexpr int kThreads = 256;

struct Params {
  const unsigned char* from;
  unsigned char* to;
  int64_t from_pitch, to_pitch;
  int32_t rows, cols;
  FastDivisor tiles_along_cols;
};

/// Loads 16 bytes of a row in accesses of kWidth bytes, to which all rows are aligned. `left`: the bytes up to the end
/// of the row. Those beyond it become zeros.
template <int kWidth>
__device__ __forceinline__ uint4 load(const unsigned char* from, int left) {
  if (kWidth == 16 && left >= 16) return ptx::ld_16(from);
  uint32_t words[4] = {};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (left >= 4 * i + 4) {
      words[i] = ptx::ld_4(from + 4 * i);
    } else {
#pragma unroll
      for (int j = 0; j < 3; ++j) {
        if (4 * i + j < left) words[i] |= static_cast<uint32_t>(ptx::ld_1(from + 4 * i + j)) << j * 8;
      }
    }
  }
  return make_uint4(words[0], words[1], words[2], words[3]);
}

/// A thread loads 16 columns of four rows, transposes them in registers, and stores them to shared memory as 16 words
/// of one column each. There a line holds a column's 128 rows. Its 16-byte chunks are permuted by the column, so that
/// neither these stores nor the loads of whole chunks have bank conflicts.
template <int kWidth>
__global__ void __launch_bounds__(kThreads, 6) transpose_kernel(const __grid_constant__ Params p) {
  __shared__ uint4 tile[kTile][kTile / 16];  // (columns, chunks of 16 rows)
  ptx::grid_launch_dependents();
  ptx::grid_dependency_wait();
  const uint32_t tile_row = p.tiles_along_cols.quotient(blockIdx.x);
  const int row0 = static_cast<int>(tile_row) * kTile;
  const int col0 = static_cast<int>(blockIdx.x - tile_row * p.tiles_along_cols.divisor()) * kTile;
  const int thread = static_cast<int>(threadIdx.x), eighth = thread % 8;
  {
    const int group = thread / 8, row = row0 + 4 * group, col = col0 + 16 * eighth;
    const unsigned char* from = p.from + row * p.from_pitch + col;
    uint4 rows[4];
    if (kWidth == 16 && row0 + kTile <= p.rows && col0 + kTile <= p.cols) {  // a loop without branches
#pragma unroll
      for (int i = 0; i < 4; ++i) rows[i] = ptx::ld_16(from + i * p.from_pitch);
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i, from += p.from_pitch) {
        rows[i] = row + i < p.rows && col < p.cols ? load<kWidth>(from, p.cols - col) : make_uint4(0, 0, 0, 0);
      }
    }
    auto* const lines = reinterpret_cast<uint32_t (*)[kTile / 4]>(tile) + 16 * eighth;
    const int at = group ^ eighth * 4;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      uint32_t w[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) w[i] = (&rows[i].x)[j];
      transpose_bytes(w);
#pragma unroll
      for (int i = 0; i < 4; ++i) lines[4 * j + i][at] = w[i];
    }
  }
  __syncthreads();
  const int row = row0 + 16 * eighth;
  if (row >= p.rows) return;
#pragma unroll
  for (int i = 0; i < kTile; i += kThreads / 8) {
    const int col = i + thread / 8;
    if (col0 + col >= p.cols) return;
    *reinterpret_cast<uint4*>(p.to + (col0 + col) * p.to_pitch + row) = tile[col][eighth ^ col / 16];
  }
}

}  // namespace

Status launch_transpose(const ByteTranspose& matrix, const DeviceFacts& facts, Stream stream) {
  const auto tiles = [](int64_t extent) { return static_cast<uint32_t>((extent + kTile - 1) / kTile); };
  Params params{};
  params.from = static_cast<const unsigned char*>(matrix.from);
  params.to = static_cast<unsigned char*>(matrix.to);
  params.from_pitch = matrix.from_pitch;
  params.to_pitch = matrix.to_pitch;
  params.rows = static_cast<int32_t>(matrix.rows);
  params.cols = static_cast<int32_t>(matrix.cols);
  params.tiles_along_cols = FastDivisor(tiles(matrix.cols));
  const uint64_t unaligned = reinterpret_cast<uintptr_t>(matrix.from) | static_cast<uint64_t>(matrix.from_pitch);
  auto* const kernel = unaligned % 16 == 0 ? transpose_kernel<16> : transpose_kernel<4>;
  return enqueue_clusters(kernel, dim3(tiles(matrix.rows) * tiles(matrix.cols)), kThreads, 0, 1,
                          has_dependent_launch(facts.cc), static_cast<cudaStream_t>(stream), params);
}

}  // namespace hgemm::tile
