// The pass that writes two float16 planes of float32 operands (split_planes.h), bound by memory bandwidth.
//
// A row's scale depends on its largest element. So a cluster has all of 32 rows, its blocks have parts of K, and they
// exchange the maxima of their parts through shared memory. A block keeps up to kHeld segments of K in registers; what
// is longer it reads a second time.
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "core/launch.cuh"
#include "ptx/cluster.cuh"
#include "ptx/dependent_launch.cuh"
#include "ptx/smem_addr.cuh"
#include "tile/split_planes.h"
#include "tile/split_source.cuh"

namespace hgemm::tile::split {

#ifdef HGEMM_NO_SM90A

Status launch_scaled_pass(const Problem&, const Memory&, unsigned*, int, Stream) {
  return cudaErrorNoKernelImageForDevice;
}

#else

namespace {

constexpr int kHeld = 1;             // segments of K that a block keeps in registers
constexpr unsigned kMostBlocks = 8;  // of a cluster

// Exponents of a row's largest element for which no factor of the epilogue over- or underflows, and the exponent that
// it is given.
constexpr int kLeastExponent = -80, kMostExponent = 63, kTop = 14;
// An element below 2^-14, the smallest normal float16, may lose bits: at most 2^-36 with the product of the second
// planes, and with a factor of less than 2^15 at most 2^-21 of a sum. It must be at most 2^-25 of that sum.
constexpr float kSmallest = 0x1p-14f, kLeastOfElement = 16.0f;

struct ScaledOperand {
  Source source;
  __half* planes;
  Scale* scales;
};

struct ScaledParams {
  ScaledOperand a, b;
  uint32_t groups_a;  // groups of 32 rows: those of A come first
  unsigned* counters;
  int count;
  unsigned* failed;  // set to zero; may be null
};

/// The value of a shared variable of another block of the cluster.
__device__ __forceinline__ uint32_t value_of_rank(const uint32_t* x, uint32_t rank) {
  return __float_as_uint(ptx::cluster_load_4(ptx::cluster_map(ptx::smem_addr(x), rank)));
}

/// Elements of a row: how many lost bits, and how many are not zero.
struct Counts {
  uint32_t lost = 0, terms = 0;
};

/// Writes the planes of a thread's elements of a row.
__device__ __forceinline__ void split_scaled(const ScaledOperand& o, const float (&x)[kLaneK], float factor,
                                             int64_t matrix, int row, int k, Counts& counts) {
  __align__(16) __half planes[kTwoPlanes][kLaneK];
#pragma unroll
  for (int i = 0; i < kLaneK; ++i) {
    const float y = x[i] * factor;
    planes[0][i] = __float2half_rn(y);
    const float high = __half2float(planes[0][i]);
    planes[1][i] = __float2half_rn((y - high) * static_cast<float>(1 << kLowBits));
    counts.terms += x[i] != 0.0f;
    counts.lost += fabsf(y) < kSmallest && (high != y || y == 0.0f) && x[i] != 0.0f;
  }
  if (k < o.source.ld) {
    __half* to = o.planes + (matrix * kTwoPlanes * o.source.rows + row) * o.source.ld + k;
#pragma unroll
    for (int plane = 0; plane < kTwoPlanes; ++plane, to += int64_t{o.source.rows} * o.source.ld) {
      uint4 bits;
      memcpy(&bits, planes[plane], sizeof(bits));
      *reinterpret_cast<uint4*>(to) = bits;
    }
  }
}

__global__ void __launch_bounds__(kSplitThreads, 2) scaled_kernel(const __grid_constant__ ScaledParams p) {
  __shared__ Tile32 tile;
  __shared__ uint32_t most[kSplitRows], lost[kSplitRows], terms[kSplitRows];
  ptx::grid_launch_dependents();
  ptx::grid_dependency_wait();
  if (blockIdx.x == 0 && blockIdx.y == 0) {
    for (int i = threadIdx.x; i < p.count; i += kSplitThreads) p.counters[i] = 0;
    if (threadIdx.x == 0 && p.failed != nullptr) *p.failed = 0;
  }
  const bool is_a = blockIdx.x < p.groups_a;
  const ScaledOperand& o = is_a ? p.a : p.b;
  const RowBlock at = row_block_at(o.source, blockIdx.x - (is_a ? 0 : p.groups_a));
  const int rank = static_cast<int>(blockIdx.y), blocks = static_cast<int>(gridDim.y);
  const int part = (o.source.pieces + blocks - 1) / blocks, first = rank * part;
  const int last = min(o.source.pieces, first + part);
  const bool is_held = part <= kHeld;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;

  float x[kHeld][kRowsOfWarp][kLaneK];
  const auto load = [&](int piece) {
#pragma unroll
    for (int h = 0; h < kHeld; ++h) {
      if (piece + h < last) load_piece(o.source, at, piece + h, tile, x[h]);
    }
  };
  uint32_t top[kRowsOfWarp] = {};
#pragma unroll 1
  for (int piece = first; piece < last; piece += kHeld) {
    load(piece);
#pragma unroll
    for (int h = 0; h < kHeld; ++h) {
      if (piece + h >= last) break;
#pragma unroll
      for (int r = 0; r < kRowsOfWarp; ++r) {
#pragma unroll
        for (int i = 0; i < kLaneK; ++i) top[r] = max(top[r], __float_as_uint(x[h][r][i]) & 0x7fffffff);
      }
    }
  }
#pragma unroll
  for (int r = 0; r < kRowsOfWarp; ++r) {
    top[r] = __reduce_max_sync(~0u, top[r]);
    if (lane == 0) most[warp * kRowsOfWarp + r] = top[r];
  }
  ptx::cluster_sync();
  int exponent[kRowsOfWarp];
  bool is_never[kRowsOfWarp];
#pragma unroll
  for (int r = 0; r < kRowsOfWarp; ++r) {
    const uint32_t of_rank = lane < blocks ? value_of_rank(&most[warp * kRowsOfWarp + r], lane) : 0;
    top[r] = __reduce_max_sync(~0u, of_rank);
    const int of_top = static_cast<int>(top[r] >> 23) - 127;  // a denormal's is too small, infinity's too large
    is_never[r] = top[r] != 0 && (of_top < kLeastExponent || of_top > kMostExponent);
    exponent[r] = top[r] == 0 || is_never[r] ? 0 : kTop - of_top;
  }

  Counts counts[kRowsOfWarp];
#pragma unroll 1
  for (int piece = first; piece < last; piece += kHeld) {
    if (!is_held) load(piece);
#pragma unroll
    for (int h = 0; h < kHeld; ++h) {
      if (piece + h >= last) break;
#pragma unroll
      for (int r = 0; r < kRowsOfWarp; ++r) {
        const int row = warp * kRowsOfWarp + r;
        if (row >= at.rows) break;
        const float factor = __uint_as_float(static_cast<uint32_t>(127 + exponent[r]) << 23);
        split_scaled(o, x[h][r], factor, at.matrix, at.row0 + row, (piece + h) * kPiece + lane * kLaneK, counts[r]);
      }
    }
  }
#pragma unroll
  for (int r = 0; r < kRowsOfWarp; ++r) {
    const uint32_t all_lost = __reduce_add_sync(~0u, counts[r].lost),
                   all_terms = __reduce_add_sync(~0u, counts[r].terms);
    if (lane == 0) lost[warp * kRowsOfWarp + r] = all_lost, terms[warp * kRowsOfWarp + r] = all_terms;
  }
  ptx::cluster_sync();
  if (rank == 0) {
#pragma unroll
    for (int r = 0; r < kRowsOfWarp; ++r) {
      const int row = warp * kRowsOfWarp + r;
      const uint32_t all_lost = __reduce_add_sync(~0u, lane < blocks ? value_of_rank(&lost[row], lane) : 0);
      const uint32_t all_terms = __reduce_add_sync(~0u, lane < blocks ? value_of_rank(&terms[row], lane) : 0);
      if (lane == 0 && row < at.rows) {
        const float least = is_never[r] ? kNever : kLeastOfElement * static_cast<float>(all_lost);
        o.scales[at.matrix * o.source.rows + at.row0 + row] = {least, static_cast<int16_t>(exponent[r]),
                                                               static_cast<uint16_t>(min(all_terms, kManyTerms))};
      }
    }
  }
  ptx::cluster_sync();  // a block must stay alive until the first one has read its counts
}

ScaledOperand scaled_operand(const Side& side, int alignment) {
  return {source_of(side, alignment), reinterpret_cast<__half*>(side.memory),
          reinterpret_cast<Scale*>(side.memory + side.planes.tiny_at)};
}

}  // namespace

Status launch_scaled_pass(const Problem& p, const Memory& memory, unsigned* counters, int count, Stream stream) {
  const Side a = side_a(p, memory, kTwoPlanes), b = side_b(p, memory, kTwoPlanes);
  ScaledParams params{};
  params.a = scaled_operand(a, alignment_a(p));
  params.b = scaled_operand(b, alignment_b(p));
  params.groups_a = memory.changed.a ? row_blocks_of(a.planes) : 0;
  params.counters = counters;
  params.count = count;
  params.failed = memory.is_first ? memory.failed : nullptr;
  const uint32_t groups = params.groups_a + (memory.changed.b ? row_blocks_of(b.planes) : 0);
  if (groups == 0) return cudaSuccess;  // then there are no counters either
  unsigned blocks = 1;
  while (blocks < kMostBlocks && blocks * 2 <= a.planes.pieces) blocks *= 2;
  return enqueue_clusters(scaled_kernel, dim3(groups, blocks), kSplitThreads, 0, blocks, true,
                          static_cast<cudaStream_t>(stream), params);
}

#endif

}  // namespace hgemm::tile::split
