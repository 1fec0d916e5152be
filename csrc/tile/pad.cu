// The copy itself: bandwidth-bound, one thread per 16-byte chunk of the destination.
#include <cuda_runtime.h>

#include <algorithm>

#include "tile/pad.h"
#include "tile/unaligned.cuh"

namespace hgemm {
namespace {

struct PadParams {
  const uint16_t* src;
  uint4* dst;
  int64_t src_ld, src_batch[2];
  int64_t rows, cols, dst_chunks_per_row, batch_inner;
  int64_t rows_in_all;  // of every batch
};

/// blockDim.x threads walk a row in chunks of 16 bytes, blockDim.y rows at a time: no division per chunk.
__global__ void __launch_bounds__(256) pad_kernel(const __grid_constant__ PadParams p) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.y;
  for (int64_t id = static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y; id < p.rows_in_all; id += step) {
    const int64_t batch = id / p.rows, row = id - batch * p.rows;
    const int64_t outer = batch / p.batch_inner, inner = batch - outer * p.batch_inner;
    const uint16_t* src = p.src + outer * p.src_batch[0] + inner * p.src_batch[1] + row * p.src_ld;
    uint4* dst = p.dst + id * p.dst_chunks_per_row;
    const bool last = id + 1 == p.rows_in_all;
#pragma unroll 2
    for (int64_t col = threadIdx.x * 8; col < p.cols; col += blockDim.x * 8) {
      const int valid = static_cast<int>(min(p.cols - col, int64_t{8}));
      const uint64_t addr = reinterpret_cast<uint64_t>(src + col);
      uint32_t words[5], out[4];
      tile::load_words(words, addr, valid, last && col + 8 >= p.cols);
      tile::align_words(out, words, tile::word_skew(addr), valid);
      dst[col / 8] = make_uint4(out[0], out[1], out[2], out[3]);
    }
  }
}

cudaError_t copy(const Problem& p, const Matrix& src, const Matrix& dst, bool unit_col_stride, int64_t rows,
                 int64_t cols, cudaStream_t stream) {
  PadParams params{};
  params.src = static_cast<const uint16_t*>(src.data);
  params.dst = static_cast<uint4*>(dst.data);
  params.src_ld = unit_col_stride ? src.row_stride : src.col_stride;
  params.rows = rows;
  params.cols = cols;
  params.dst_chunks_per_row = (unit_col_stride ? dst.row_stride : dst.col_stride) / 8;
  int64_t batches = 1;
  for (int i = 0; i < 2; ++i) {
    params.src_batch[i] = src.batch_stride[i];
    batches *= src.batch_stride[i] == 0 ? 1 : p.batch[i];
  }
  params.batch_inner = src.batch_stride[1] == 0 ? 1 : p.batch[1];
  params.rows_in_all = batches * rows;
  if (params.rows_in_all == 0 || cols == 0) return cudaSuccess;
  constexpr int kThreads = 256;
  constexpr int64_t kMaxBlocks = 1 << 16;
  unsigned width = 1;
  while (width < kThreads && width * 8 < cols) width *= 2;
  const dim3 block(width, kThreads / width);
  const auto blocks = static_cast<unsigned>(std::min((params.rows_in_all + block.y - 1) / block.y, kMaxBlocks));
  pad_kernel<<<blocks, block, 0, stream>>>(params);
  return cudaGetLastError();
}

}  // namespace

Status launch_pad(const Problem& p, bool pad_a, bool pad_b, void* workspace, Stream stream_) {
  const auto stream = static_cast<cudaStream_t>(stream_);
  const Problem to = padded_problem(p, pad_a, pad_b, workspace);
  if (pad_a) {
    const bool k_major = p.a_major() == Major::kK;
    const cudaError_t e = copy(p, p.a, to.a, k_major, k_major ? p.m : p.k, k_major ? p.k : p.m, stream);
    if (e != cudaSuccess) return e;
  }
  if (pad_b) {
    const bool k_major = p.b_major() == Major::kK;
    return copy(p, p.b, to.b, !k_major, k_major ? p.n : p.k, k_major ? p.k : p.n, stream);
  }
  return cudaSuccess;
}

}  // namespace hgemm
