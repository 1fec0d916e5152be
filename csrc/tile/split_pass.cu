// The pass that writes the planes of float32 operands (split_planes.h). It is bound by memory bandwidth.
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "core/fast_divisor.h"
#include "core/launch.cuh"
#include "ptx/dependent_launch.cuh"
#include "tile/split_planes.h"
#include "tile/split_source.cuh"

namespace hgemm::tile::split {
namespace {

// Magnitudes, as bits of a float32. A value smaller than kTiny may lose bits of its last plane. A segment of a row is
// flagged if it contains such a value and no value of at least kPlain, beside which the lost bits would not matter.
// Results that depend on a flagged segment are not taken from the planes but recomputed (mend in split_product.cuh).
constexpr uint32_t kTiny = (127 - 110) << 23, kPlain = (127 - 80) << 23;

/// One operand, and the addresses of its planes.
struct SplitOperand {
  Source source;
  __nv_bfloat16* planes;
  unsigned char* tiny;
  FastDivisor by_pieces;
};

struct SplitParams {
  SplitOperand a, b;
  uint32_t blocks_a, blocks;  // pairs of 32 rows and a segment of K: those of A come first; all
  unsigned* counters;
  int count;
  const unsigned* inaccurate;  // see Memory
};

template <bool kComplex>
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
  const int64_t rows = plane_rows(o.source);
  if (lane <= o.source.is_complex_b) {  // two rows of the planes have the same magnitudes
    const int64_t flagged = matrix * rows + (row << o.source.is_complex_b) + lane;
    o.tiny[flagged * o.source.pieces + piece] = is_tiny;
  }
  const int k = piece * kPiece + lane * kLaneK;
  if (k >= o.source.ld) return;
  __nv_bfloat16* to = o.planes + matrix * kPlanes * rows * o.source.ld + k;
#pragma unroll
  for (int plane = 0; plane < kPlanes; ++plane, to += rows * o.source.ld) {
    uint4 bits;
    memcpy(&bits, planes[plane], sizeof(bits));
    write_plane<kComplex>(o.source, to, row, bits);
  }
}

template <bool kComplex>
__global__ void __launch_bounds__(kSplitThreads) split_kernel(const __grid_constant__ SplitParams p) {
  __shared__ SharedPiece shared;
  ptx::grid_launch_dependents();
  ptx::grid_dependency_wait();
  if (has_nothing_to_do(p.inaccurate)) return;
  if (blockIdx.x == 0) {
    for (int i = threadIdx.x; i < p.count; i += kSplitThreads) p.counters[i] = 0;
  }
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll 1
  for (uint32_t block = blockIdx.x; block < p.blocks; block += gridDim.x) {
    const bool is_a = block < p.blocks_a;
    const SplitOperand& o = is_a ? p.a : p.b;
    const uint32_t id = block - (is_a ? 0 : p.blocks_a);
    const uint32_t row_block = o.by_pieces.quotient(id), piece = id - row_block * o.by_pieces.divisor();
    const RowBlock at = row_block_at(o.source, row_block);
    float x[kRowsOfWarp][kLaneK];
    load_piece<kComplex>(o.source, at, static_cast<int>(piece), shared, x);
#pragma unroll
    for (int r = 0; r < kRowsOfWarp; ++r) {
      const int row = warp * kRowsOfWarp + r;
      if (row < at.rows) split_row<kComplex>(o, x[r], at.matrix, at.row0 + row, static_cast<int>(piece), lane);
    }
  }
}

uint32_t blocks_of(const Side& side) {
  return row_blocks_of(side) * static_cast<uint32_t>(side.planes.pieces);
}

SplitOperand split_operand(const Side& side) {
  return {source_of(side), reinterpret_cast<__nv_bfloat16*>(side.memory), side.memory + side.planes.tiny_at,
          FastDivisor(static_cast<uint32_t>(side.planes.pieces))};
}

}  // namespace

Status launch_pass(const Problem& p, const Memory& memory, unsigned* counters, int count, Stream stream) {
  const Side a = side_a(p, memory), b = side_b(p, memory);
  constexpr uint32_t kMostIdle = 1024;  // blocks, where most launches have nothing to do
  SplitParams params{};
  params.a = split_operand(a);
  params.b = split_operand(b);
  params.blocks_a = memory.changed.a ? blocks_of(a) : 0;
  params.blocks = params.blocks_a + (memory.changed.b ? blocks_of(b) : 0);
  params.counters = counters;
  params.count = count;
  params.inaccurate = memory.inaccurate;
  if (params.blocks == 0) return cudaSuccess;  // then there are no counters either
  const dim3 grid(memory.inaccurate != nullptr ? std::min(params.blocks, kMostIdle) : params.blocks);
  const auto kernel = p.is_real_form ? split_kernel<true> : split_kernel<false>;
  return enqueue_clusters(kernel, grid, kSplitThreads, 0, 1, true, static_cast<cudaStream_t>(stream), params);
}

}  // namespace hgemm::tile::split
