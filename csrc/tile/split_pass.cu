// The pass that writes the planes of float32 operands (split_planes.h). It is bound by memory bandwidth.
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <cstring>

#include "core/fast_divisor.h"
#include "core/launch.cuh"
#include "ptx/dependent_launch.cuh"
#include "tile/split_planes.h"

namespace hgemm::tile::split {
namespace {

constexpr int kSplitThreads = 256, kSplitRows = 32;  // of a block; its chunk of K has kPiece elements
constexpr int kLaneK = kPiece / 32;                  // elements of K per lane

// Magnitudes, as bits of a float32. A value smaller than kTiny may lose bits of its last plane. A segment of a row is
// flagged if it contains such a value and no value of at least kPlain, beside which the lost bits would not matter.
// Results that depend on a flagged segment are not taken from the planes but recomputed (mend in split_product.cuh).
constexpr uint32_t kTiny = (127 - 110) << 23, kPlain = (127 - 80) << 23;

/// One operand in its original memory, and the addresses of its planes.
struct SplitOperand {
  const float* src;
  int64_t row, k_stride, batch[2];  // strides, in elements
  __nv_bfloat16* planes;
  unsigned char* tiny;
  int32_t rows, k, ld, pieces;
  bool wide;  // rows may be read 16 bytes at a time
  FastDivisor by_pieces, by_row_blocks, by_inner;
};

struct SplitParams {
  SplitOperand a, b;
  uint32_t blocks_a;  // the first blocks split A
  unsigned* counters;
  int count;
};

/// The position of k in a row of the shared tile, which is used for operands whose rows are neighbours in memory. Each
/// group of eight k is permuted, so that elements that the lanes of a warp read together lie in different banks.
__device__ __forceinline__ int place_of(int k) {
  return (k & ~7) | ((k ^ k >> 5) & 7);
}

__device__ __forceinline__ void split_row(const SplitOperand& o, const float (&x)[kLaneK], int64_t matrix, int row,
                                          int piece, int lane) {
  bool tiny = false, plain = false;
  __align__(16) __nv_bfloat16 planes[kPlanes][kLaneK];
#pragma unroll
  for (int i = 0; i < kLaneK; ++i) {
    const uint32_t magnitude = __float_as_uint(x[i]) & 0x7fffffff;
    tiny |= magnitude != 0 && magnitude < kTiny;
    plain |= magnitude >= kPlain;
    float rest = x[i];
#pragma unroll
    for (int plane = 0; plane < kPlanes; ++plane) {
      planes[plane][i] = __float2bfloat16_rn(rest);
      rest -= __bfloat162float(planes[plane][i]);
    }
  }
  const bool is_tiny = __any_sync(~0u, tiny) && !__any_sync(~0u, plain);
  if (lane == 0) o.tiny[(matrix * o.rows + row) * o.pieces + piece] = is_tiny;
  const int k = piece * kPiece + lane * kLaneK;
  if (k >= o.ld) return;
  __nv_bfloat16* to = o.planes + (matrix * kPlanes * o.rows + row) * o.ld + k;
#pragma unroll
  for (int plane = 0; plane < kPlanes; ++plane, to += int64_t{o.rows} * o.ld) {
    uint4 bits;
    memcpy(&bits, planes[plane], sizeof(bits));
    *reinterpret_cast<uint4*>(to) = bits;
  }
}

__global__ void __launch_bounds__(kSplitThreads) split_kernel(const __grid_constant__ SplitParams p) {
  __shared__ float tile[kSplitRows][kPiece + 1];
  ptx::grid_launch_dependents();
  ptx::grid_dependency_wait();
  if (blockIdx.x == 0) {
    for (int i = threadIdx.x; i < p.count; i += kSplitThreads) p.counters[i] = 0;
  }
  const bool is_a = blockIdx.x < p.blocks_a;
  const SplitOperand& o = is_a ? p.a : p.b;
  const uint32_t id = blockIdx.x - (is_a ? 0 : p.blocks_a);
  const uint32_t row_block = o.by_pieces.quotient(id), piece = id - row_block * o.by_pieces.divisor();
  const uint32_t matrix = o.by_row_blocks.quotient(row_block);
  const int row0 = static_cast<int>(row_block - matrix * o.by_row_blocks.divisor()) * kSplitRows;
  const uint32_t outer = o.by_inner.quotient(matrix), inner = matrix - outer * o.by_inner.divisor();
  const int k0 = static_cast<int>(piece) * kPiece;
  const float* const src = o.src + outer * o.batch[0] + inner * o.batch[1] + row0 * o.row + k0 * o.k_stride;
  const int rows = min(o.rows - row0, kSplitRows), ks = min(o.k - k0, kPiece);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  constexpr int kWarps = kSplitThreads / 32, kRowsOfWarp = kSplitRows / kWarps;
  const bool k_major = o.k_stride == 1;
  if (!k_major) {
#pragma unroll 8
    for (int k = warp; k < kPiece; k += kWarps) {
      tile[lane][place_of(k)] = k < ks && lane < rows ? src[lane * o.row + k * o.k_stride] : 0.0f;
    }
    __syncthreads();
  }
  float x[kRowsOfWarp][kLaneK];
#pragma unroll
  for (int r = 0; r < kRowsOfWarp; ++r) {
    const int row = warp * kRowsOfWarp + r;
    if (k_major) {
      const float* const from = src + row * o.row + lane * kLaneK;
      if (row < rows && o.wide && lane * kLaneK + kLaneK <= ks) {
        const float4 low = reinterpret_cast<const float4*>(from)[0], high = reinterpret_cast<const float4*>(from)[1];
        x[r][0] = low.x, x[r][1] = low.y, x[r][2] = low.z, x[r][3] = low.w;
        x[r][4] = high.x, x[r][5] = high.y, x[r][6] = high.z, x[r][7] = high.w;
      } else {
#pragma unroll
        for (int i = 0; i < kLaneK; ++i) x[r][i] = row < rows && lane * kLaneK + i < ks ? from[i] : 0.0f;
      }
    } else {
#pragma unroll
      for (int i = 0; i < kLaneK; ++i) x[r][i] = tile[row][place_of(lane * kLaneK + i)];
    }
  }
#pragma unroll
  for (int r = 0; r < kRowsOfWarp; ++r) {
    const int row = warp * kRowsOfWarp + r;
    if (row < rows) split_row(o, x[r], matrix, row0 + row, static_cast<int>(piece), lane);
  }
}

uint32_t blocks_of(const Planes& planes) {
  const int64_t row_blocks = (planes.rows + kSplitRows - 1) / kSplitRows;
  return static_cast<uint32_t>(planes.batch[0] * planes.batch[1] * row_blocks * planes.pieces);
}

SplitOperand split_operand(const Side& side, int alignment) {
  const Planes& planes = side.planes;
  SplitOperand o{};
  o.src = static_cast<const float*>(side.x.data);
  o.row = side.row;
  o.k_stride = side.k_stride;
  for (int i = 0; i < 2; ++i) o.batch[i] = side.x.batch_stride[i];
  o.planes = reinterpret_cast<__nv_bfloat16*>(side.memory);
  o.tiny = side.memory + planes.tiny_at;
  o.rows = static_cast<int32_t>(planes.rows);
  o.k = static_cast<int32_t>(planes.k);
  o.ld = static_cast<int32_t>(planes.ld);
  o.pieces = static_cast<int32_t>(planes.pieces);
  o.wide = alignment == 16;
  o.by_pieces = FastDivisor(static_cast<uint32_t>(planes.pieces));
  o.by_row_blocks = FastDivisor(static_cast<uint32_t>((planes.rows + kSplitRows - 1) / kSplitRows));
  o.by_inner = FastDivisor(static_cast<uint32_t>(planes.batch[1]));
  return o;
}

}  // namespace

Status launch_pass(const Problem& p, const Memory& memory, unsigned* counters, int count, Stream stream) {
  const Side a = side_a(p, memory), b = side_b(p, memory);
  const uint32_t blocks_a = memory.changed.a ? blocks_of(a.planes) : 0;
  SplitParams params{split_operand(a, alignment_a(p)), split_operand(b, alignment_b(p)), blocks_a, counters, count};
  const dim3 grid(blocks_a + (memory.changed.b ? blocks_of(b.planes) : 0));
  if (grid.x == 0) return cudaSuccess;  // then there are no counters either
  return enqueue_clusters(split_kernel, grid, kSplitThreads, 0, 1, true, static_cast<cudaStream_t>(stream), params);
}

}  // namespace hgemm::tile::split
