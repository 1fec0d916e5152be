// The copy itself: bandwidth-bound. One launch serves both operands; a thread moves a few 16-byte chunks of a row, read
// in aligned 16-byte words and shifted into place.
#include <cuda_runtime.h>

#include <algorithm>

#include "ptx/dependent_launch.cuh"
#include "tile/chunk.cuh"
#include "tile/launch.cuh"
#include "tile/pad.h"

namespace hgemm {
namespace {

constexpr int kThreads = 256;
constexpr int kChunks = 4;  // of a thread, in flight together

struct Operand {
  const uint16_t* src;
  uint4* dst;
  int64_t src_ld, src_batch[2];
  int64_t rows, cols, dst_chunks_per_row, batch_inner;
  uint32_t tile_chunks, gap_chunks;  // of a row, behind each of its tiles
  int64_t segments;                  // of a row: what `lanes` threads copy
  int64_t segments_in_all;           // of every row of every batch
  int lanes;                         // a power of two
};

struct Params {
  Operand a, b;
  uint32_t blocks_a;  // the first blocks copy A
};

/// Clears what lies beyond `valid` elements.
__device__ __forceinline__ uint4 first_elements(const uint4& x, int valid) {
  const auto keep = [valid](uint32_t word, int at) { return valid > at + 1 ? word : valid > at ? word & 0xffffu : 0u; };
  return make_uint4(keep(x.x, 0), keep(x.y, 2), keep(x.z, 4), keep(x.w, 6));
}

__global__ void __launch_bounds__(kThreads) pad_kernel(const __grid_constant__ Params p) {
  ptx::grid_launch_dependents();
  ptx::grid_dependency_wait();
  const bool is_a = blockIdx.x < p.blocks_a;
  const Operand& o = is_a ? p.a : p.b;
  const int64_t thread = static_cast<int64_t>(blockIdx.x - (is_a ? 0 : p.blocks_a)) * kThreads + threadIdx.x;
  const int64_t id = thread / o.lanes;
  if (id >= o.segments_in_all) return;
  const int64_t row_id = id / o.segments, segment = id - row_id * o.segments;
  const int64_t batch = row_id / o.rows, row = row_id - batch * o.rows;
  const int64_t outer = batch / o.batch_inner, inner = batch - outer * o.batch_inner;
  const uint16_t* matrix = o.src + outer * o.src_batch[0] + inner * o.src_batch[1];
  const int64_t first = segment * kChunks * o.lanes + threadIdx.x % o.lanes;
  const uint16_t* src = matrix + row * o.src_ld + first * 8;
  uint4* dst = o.dst + row_id * o.dst_chunks_per_row;
  const auto place_of = [&](int i) {
    const auto chunk = static_cast<uint32_t>(first + i * o.lanes);
    return o.gap_chunks == 0 ? chunk : chunk + chunk / o.tile_chunks * o.gap_chunks;
  };
  const auto valid = [&](int i) { return static_cast<int>(min(o.cols - (first + i * o.lanes) * 8, int64_t{8})); };

  // Aligned words around the row's ends hold neighbours; outside of the matrix there may be nothing to read.
  const int skew = static_cast<int>(reinterpret_cast<uint64_t>(src) >> 1) & 7;
  const uint16_t* end = matrix + (o.rows - 1) * o.src_ld + o.cols;
  const uint16_t* reach = src - skew + ((kChunks - 1) * o.lanes + 2) * 8;
  if (src - skew >= matrix && reach <= end) {
    uint4 low[kChunks], high[kChunks];
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
      const auto* from = reinterpret_cast<const uint4*>(src - skew + i * o.lanes * 8);
      if (valid(i) > 0) low[i] = from[0], high[i] = from[1];
    }
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
      if (valid(i) > 0) dst[place_of(i)] = first_elements(tile::shifted(low[i], high[i], skew), valid(i));
    }
  } else {
    for (int i = 0; i < kChunks && valid(i) > 0; ++i) {
      uint32_t words[4] = {};
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        if (j < valid(i)) words[j / 2] |= static_cast<uint32_t>(src[i * o.lanes * 8 + j]) << j % 2 * 16;
      }
      dst[place_of(i)] = make_uint4(words[0], words[1], words[2], words[3]);
    }
  }
}

int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

Operand operand(const Problem& p, const Matrix& src, const Matrix& dst, bool unit_col_stride, int64_t rows,
                int64_t cols, int tile = 0) {
  Operand o{};
  o.src = static_cast<const uint16_t*>(src.data);
  o.dst = static_cast<uint4*>(dst.data);
  o.src_ld = unit_col_stride ? src.row_stride : src.col_stride;
  o.rows = rows;
  o.cols = cols;
  o.dst_chunks_per_row = (unit_col_stride ? dst.row_stride : dst.col_stride) / 8;
  o.tile_chunks = static_cast<uint32_t>(tile / 8);
  o.gap_chunks = static_cast<uint32_t>((pitch_of(tile) - tile) / 8);
  int64_t batches = 1;
  for (int i = 0; i < 2; ++i) {
    o.src_batch[i] = src.batch_stride[i];
    batches *= src.batch_stride[i] == 0 ? 1 : p.batch[i];
  }
  o.batch_inner = src.batch_stride[1] == 0 ? 1 : p.batch[1];
  o.lanes = 1;
  while (o.lanes < 32 && o.lanes * 8 < cols) o.lanes *= 2;
  o.segments = ceil_div(cols, 8 * kChunks * o.lanes);
  o.segments_in_all = batches * rows * o.segments;
  return o;
}

uint32_t blocks_for(const Operand& o) {
  return static_cast<uint32_t>(ceil_div(o.segments_in_all * o.lanes, kThreads));
}

}  // namespace

Status launch_pad(const Problem& p, const Pads& pads, void* workspace, bool overlap, Stream stream) {
  const Problem to = padded_problem(p, pads, workspace);
  Params params{};
  if (pads.a) {
    const bool k_major = p.a_major() == Major::kK;
    params.a = operand(p, p.a, to.a, k_major, k_major ? p.m : p.k, k_major ? p.k : p.m);
    params.blocks_a = blocks_for(params.a);
  }
  if (pads.b) {
    const bool k_major = p.b_major() == Major::kK;
    params.b = operand(p, p.b, to.b, !k_major, k_major ? p.n : p.k, k_major ? p.k : p.n, to.b_tile);
  }
  cudaLaunchConfig_t config{};
  config.gridDim = params.blocks_a + (pads.b ? blocks_for(params.b) : 0);
  config.blockDim = kThreads;
  config.stream = static_cast<cudaStream_t>(stream);
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &attribute;
  config.numAttrs = overlap && tile::can_launch_dependents() ? 1 : 0;
  return config.gridDim.x == 0 ? cudaSuccess : cudaLaunchKernelEx(&config, pad_kernel, params);
}

}  // namespace hgemm
