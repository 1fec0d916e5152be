// The kernel that pads operands. It is bound by bandwidth. One launch copies both operands. A thread moves a few
// 16-byte chunks of the copy: it reads each as two aligned 16-byte words and shifts them into place.
#include <cuda_runtime.h>

#include <algorithm>

#include "core/chip.h"
#include "core/fast_divisor.h"
#include "core/launch.cuh"
#include "ptx/dependent_launch.cuh"
#include "ptx/global.cuh"
#include "tile/chunk.cuh"
#include "tile/pad.h"

namespace hgemm {
namespace {

constexpr int kThreads = 256;
constexpr int kManyChunks = 4;  // chunks of a thread that are in flight together
constexpr int kManyBlocks = 2;  // per SM; with fewer blocks, a thread moves one chunk

struct Operand {
  const uint16_t* src;
  uint4* dst;
  int64_t src_ld, src_batch[2];
  int64_t chunks;  // of all matrices
  int32_t rows, cols;
  uint32_t dst_ld;         // in chunks
  uint32_t near_ld_bytes;  // src_ld in bytes; 0 if that does not fit 32 bits
  uint32_t gap_chunks;     // after each tile of a row
  FastDivisor by_row, by_matrix, by_inner, by_tile;
};

struct Params {
  Operand a, b;
  uint32_t blocks_a;  // the first blocks copy A
};

/// Returns the first `valid` elements of a chunk; all others are zero.
__device__ __forceinline__ uint4 first_elements(const uint4& x, int valid) {
  const auto keep = [valid](uint32_t word, int at) { return valid > at + 1 ? word : valid > at ? word & 0xffffu : 0u; };
  return make_uint4(keep(x.x, 0), keep(x.y, 2), keep(x.z, 4), keep(x.w, 6));
}

/// The position of a block's first chunk. Chunks are numbered in the order of the operand's rows.
struct Start {
  int64_t chunk;
  uint32_t batch, row, in_row;
};

__device__ __forceinline__ const unsigned char* address_of(const uint16_t* x) {
  return reinterpret_cast<const unsigned char*>(x);
}
__device__ __forceinline__ const uint16_t* matrix_of(const Operand& o, uint32_t batch) {
  const uint32_t outer = o.by_inner.quotient(batch), inner = batch - outer * o.by_inner.divisor();
  return o.src + outer * o.src_batch[0] + inner * o.src_batch[1];
}

/// Copies a block's chunks. kInside: the chunks lie in one matrix, and so far from its ends that the aligned words
/// around them lie inside it too.
template <int kChunks, bool kInside>
__device__ __forceinline__ void copy(const Operand& o, const Start& start) {
  const auto* const first_row = address_of(matrix_of(o, start.batch) + start.row * o.src_ld);
  auto* const to = o.dst + (int64_t{start.batch} * o.rows + start.row) * o.dst_ld;
  const unsigned char* src[kChunks];
  uint4 *dst[kChunks], low[kChunks], high[kChunks];
  int valid[kChunks];
  bool wide[kChunks];
#pragma unroll
  for (int i = 0; i < kChunks; ++i) {
    const uint32_t at = i * kThreads + threadIdx.x, on = start.in_row + at;
    const uint32_t rows_on = o.by_row.quotient(on), chunk = on - rows_on * o.by_row.divisor();
    dst[i] = to + uint64_t{rows_on} * o.dst_ld + chunk;
    if (o.gap_chunks != 0) dst[i] += o.by_tile.quotient(chunk) * o.gap_chunks;
    valid[i] = min(o.cols - static_cast<int>(chunk) * 8, 8);
    if constexpr (kInside) {
      src[i] = first_row + uint64_t{rows_on} * o.near_ld_bytes + uint64_t{chunk} * 16;
      wide[i] = true;
    } else {
      if (start.chunk + at >= o.chunks) valid[i] = 0;
      const uint32_t row = start.row + rows_on, matrices_on = o.by_matrix.quotient(row);
      const uint16_t* const matrix = matrix_of(o, start.batch + matrices_on);
      const uint16_t* const x = matrix + (row - matrices_on * o.by_matrix.divisor()) * o.src_ld + chunk * 8;
      // At the ends of the matrix, the aligned words around a chunk may cover memory that cannot be read.
      const uint16_t* const word = x - tile::off_grid(x);
      wide[i] = valid[i] > 0 && word >= matrix && word + 16 <= matrix + (o.rows - 1) * o.src_ld + o.cols;
      src[i] = address_of(x);
    }
    if (wide[i]) {
      const auto* const word = reinterpret_cast<const uint4*>(reinterpret_cast<uint64_t>(src[i]) & ~uint64_t{15});
      low[i] = ptx::ld_16(word), high[i] = ptx::ld_16(word + 1);
    }
  }
#pragma unroll
  for (int i = 0; i < kChunks; ++i) {
    if (!kInside && valid[i] <= 0) continue;
    uint4 x;
    if (wide[i]) {
      x = tile::shifted(low[i], high[i], tile::off_grid(src[i]));
      if (valid[i] < 8) x = first_elements(x, valid[i]);
    } else {
      uint32_t words[4] = {};
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        if (j < valid[i]) {
          words[j / 2] |= static_cast<uint32_t>(reinterpret_cast<const uint16_t*>(src[i])[j]) << j % 2 * 16;
        }
      }
      x = make_uint4(words[0], words[1], words[2], words[3]);
    }
    *dst[i] = x;
  }
}

template <int kChunks>
__global__ void __launch_bounds__(kThreads) pad_kernel(const __grid_constant__ Params p) {
  ptx::grid_launch_dependents();
  ptx::grid_dependency_wait();
  const bool is_a = blockIdx.x < p.blocks_a;
  const Operand& o = is_a ? p.a : p.b;
  constexpr uint32_t kBlockChunks = kThreads * kChunks;
  const uint64_t chunk = uint64_t{blockIdx.x - (is_a ? 0 : p.blocks_a)} * kBlockChunks;
  const uint64_t rows = static_cast<uint32_t>(o.rows), row_id = chunk / o.by_row.divisor();
  const uint64_t batch = row_id < rows ? 0 : row_id / rows;
  const Start start{static_cast<int64_t>(chunk), static_cast<uint32_t>(batch),
                    static_cast<uint32_t>(row_id - batch * rows),
                    static_cast<uint32_t>(chunk - row_id * o.by_row.divisor())};
  const int64_t last_row = start.row + o.by_row.quotient(start.in_row + kBlockChunks - 1);
  // The two words of a chunk begin less than 16 bytes before it and end less than 16 bytes behind it. The last chunk of
  // a row extends less than 16 bytes beyond the row.
  if (int64_t{start.row} * o.near_ld_bytes >= 16 && (o.rows - 1 - last_row) * int64_t{o.near_ld_bytes} >= 32) {
    copy<kChunks, true>(o, start);
  } else {
    copy<kChunks, false>(o, start);
  }
}

int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

Operand operand(const Problem& p, const Matrix& src, const Matrix& dst, bool unit_col_stride, int64_t rows,
                int64_t cols, int tile = 0) {
  Operand o{};
  if (rows == 0 || cols == 0) return o;
  o.src = static_cast<const uint16_t*>(src.data);
  o.dst = static_cast<uint4*>(dst.data);
  o.src_ld = unit_col_stride ? src.row_stride : src.col_stride;
  o.near_ld_bytes = o.src_ld <= INT32_MAX ? static_cast<uint32_t>(o.src_ld) * 2 : 0;
  o.dst_ld = static_cast<uint32_t>((unit_col_stride ? dst.row_stride : dst.col_stride) / 8);
  o.rows = static_cast<int32_t>(rows);
  o.cols = static_cast<int32_t>(cols);
  o.by_row = FastDivisor(static_cast<uint32_t>(ceil_div(cols, 8)));
  o.by_matrix = FastDivisor(static_cast<uint32_t>(rows));
  if (tile > 0) {
    o.by_tile = FastDivisor(static_cast<uint32_t>(tile / 8));
    o.gap_chunks = static_cast<uint32_t>((pitch_of(tile) - tile) / 8);
  }
  int64_t batches = 1;
  for (int i = 0; i < 2; ++i) {
    o.src_batch[i] = src.batch_stride[i];
    batches *= src.batch_stride[i] == 0 ? 1 : p.batch[i];
  }
  if (src.batch_stride[1] != 0) o.by_inner = FastDivisor(static_cast<uint32_t>(p.batch[1]));
  o.chunks = batches * rows * o.by_row.divisor();
  return o;
}

int64_t blocks_for(const Operand& o, int chunks) {
  return ceil_div(o.chunks, kThreads * chunks);
}

}  // namespace

Status launch_pad(const Problem& p, const DeviceFacts& facts, const Pads& pads, const tile::Changed& changed,
                  const PadMemory& memory, Stream stream) {
  const Problem to = padded_problem(p, pads, memory);
  Params params{};
  if (pads.a && changed.a) {
    const bool k_major = p.a_major() == Major::kK;
    params.a = operand(p, p.a, to.a, k_major, k_major ? p.m : p.k, k_major ? p.k : p.m);
  }
  if (pads.b && changed.b) {
    const bool k_major = p.b_major() == Major::kK;
    params.b = operand(p, p.b, to.b, !k_major, k_major ? p.n : p.k, k_major ? p.k : p.n, to.b_tile);
  }
  const bool few = blocks_for(params.a, kManyChunks) + blocks_for(params.b, kManyChunks) < kManyBlocks * facts.sm_count;
  const int chunks = few ? 1 : kManyChunks;
  params.blocks_a = static_cast<uint32_t>(blocks_for(params.a, chunks));
  const dim3 grid(params.blocks_a + static_cast<uint32_t>(blocks_for(params.b, chunks)));
  if (grid.x == 0) return cudaSuccess;
  return enqueue_clusters(few ? pad_kernel<1> : pad_kernel<kManyChunks>, grid, kThreads, 0, 1,
                          has_dependent_launch(facts.cc), static_cast<cudaStream_t>(stream), params);
}

}  // namespace hgemm
