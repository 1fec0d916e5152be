// The pass that writes two float16 planes of float32 operands (split_planes.h), bound by memory bandwidth.
//
// A row's scale depends on its largest element. So a cluster has all of 32 rows, its blocks have parts of K, and each
// of them stores what it has seen of its parts in the shared memory of all others. A block keeps up to kHeld segments
// of K in registers; what is longer it reads a second time. Before sm_90 there are no clusters, and one block has all
// of K.
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "core/chip.h"
#include "core/launch.cuh"
#include "ptx/approx.cuh"
#include "ptx/cluster.cuh"
#include "ptx/dependent_launch.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/smem_addr.cuh"
#include "tile/split_planes.h"
#include "tile/split_source.cuh"

namespace hgemm::tile::split {
namespace {

constexpr int kHeld = 1;             // segments of K that a block keeps in registers
constexpr unsigned kMostBlocks = 8;  // of a cluster

/// True in device code for an architecture that has clusters.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
constexpr bool kHasClusters = true;
#else
constexpr bool kHasClusters = false;
#endif

/// Blocks on an SM, whose registers the compiler divides among them. sm_86 and sm_89 have shared memory for two.
#if defined(__CUDA_ARCH__) && (__CUDA_ARCH__ == 860 || __CUDA_ARCH__ == 890)
constexpr int kBlocksOfSm = 2;
#else
constexpr int kBlocksOfSm = 3;
#endif

// Exponents of a row's largest element for which no factor of the epilogue over- or underflows, and the exponent that
// it is given.
constexpr int kLeastExponent = -80, kMostExponent = 63, kTop = 14;
// An element below 2^-14, the smallest normal float16, may lose bits: at most 2^-36 with the product of the second
// planes, and with a factor of less than 2^15 at most 2^-21 of a sum. It must be at most 2^-25 of that sum. All
// elements of a row that has one such element count as such.
constexpr int kSmallest = -14;
constexpr float kLeastOfElement = 16.0f;

constexpr uint32_t kPositive = 1, kNegative = 2;  // signs that a row has
constexpr uint32_t kBoth = kPositive | kNegative;
constexpr int kOfImaginary = 2;  // complex rows: the bits above those of the real parts are of the imaginary ones

__device__ __forceinline__ bool is_one_sign(uint32_t signs) {
  return signs == kPositive || signs == kNegative;
}

/// The signs of the negatives, if `flip`.
__device__ __forceinline__ uint32_t flipped(uint32_t signs, uint32_t flip) {
  return flip != 0 ? (signs & kPositive) << 1 | (signs & kNegative) >> 1 : signs;
}

/// Whether row `row` of the planes that are made of a row with these signs has one sign. `row` is 1 only for the second
/// one of B of a complex product (write_plane).
template <bool kComplex>
__device__ __forceinline__ bool is_one_sign_row(const Source& o, uint32_t signs, int row) {
  const uint32_t real = signs & kBoth, imaginary = kComplex ? signs >> kOfImaginary : 0;
  if (!kComplex || !o.is_complex_b) return is_one_sign(real | imaginary);
  const uint32_t even = row == 0 ? 0 : o.flips >> 2 & 1, odd = o.flips >> (2 * row + 1) & 1;
  return is_one_sign(row == 0 ? real | flipped(imaginary, odd) : flipped(imaginary, even) | flipped(real, odd));
}

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
  unsigned* inaccurate;  // set to zero; may be null
};

/// What a block, and then a cluster, has seen of a row. It is exchanged as 16 bytes.
struct alignas(16) RowStats {
  uint32_t most = 0;     // the largest magnitude, as bits
  uint32_t least = ~0u;  // the smallest magnitude of a nonzero element, as bits: times 2, less 1
  uint32_t terms = 0;    // nonzero elements
  uint32_t signs = 0;    // those of real parts, and above them those of imaginary ones
};
static_assert(sizeof(RowStats) == 16 && kRowsOfWarp * kMostBlocks == 32);

/// What a thread has seen of a row. Most of this is computed with float32 instructions, of which an SM issues twice as
/// many as of those for integers. Real and imaginary parts have largest and smallest elements of their own.
template <bool kComplex>
struct Seen {
  static constexpr int kParts = kComplex ? 2 : 1;
  float largest[kParts] = {}, smallest[kParts] = {};  // with their signs; never below, and never above, 0
  float terms = 0;                                    // nonzero elements; a denormal one may count as a part of one
  uint32_t bottom = ~0u;  // the smallest magnitude of a nonzero element, as bits: times 2, less 1

  __device__ __forceinline__ void add(const float (&x)[kLaneK]) {
#pragma unroll
    for (int i = 0; i < kLaneK; ++i) {
      const int part = i % kParts;
      largest[part] = ptx::max_or_nan(largest[part], x[i]);
      smallest[part] = fminf(smallest[part], x[i]);
      terms += __saturatef(fabsf(x[i]) * 0x1p127f);
      bottom = min(bottom, __float_as_uint(x[i]) * 2 - 1);
    }
  }
  /// The largest magnitude, as bits. That of NaN is above all others.
  __device__ __forceinline__ uint32_t top() const {
    float most = 0;
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      most = ptx::max_or_nan(most, ptx::max_or_nan(largest[part], -smallest[part]));
    }
    return __float_as_uint(most) & 0x7fffffff;
  }
  __device__ __forceinline__ uint32_t signs() const {
    uint32_t of_parts = 0;
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      const uint32_t sign = (largest[part] > 0 ? kPositive : 0) | (smallest[part] < 0 ? kNegative : 0);
      of_parts |= sign << part * kOfImaginary;
    }
    return of_parts;
  }
};

/// Writes the planes of a thread's elements of a row.
template <bool kComplex>
__device__ __forceinline__ void split_scaled(const ScaledOperand& o, const float (&x)[kLaneK], float factor,
                                             int64_t matrix, int row, int k) {
  if (k >= o.source.ld) return;
  __half2 planes[kTwoPlanes][kLaneK / 2];
#pragma unroll
  for (int i = 0; i < kLaneK; i += 2) {
    const float y[2] = {x[i] * factor, x[i + 1] * factor};
    const __half2 pair = __floats2half2_rn(y[0], y[1]);
    const float2 high = __half22float2(pair);
    constexpr auto kUnit = static_cast<float>(1 << kLowBits);
    planes[0][i / 2] = pair;
    planes[1][i / 2] = __floats2half2_rn((y[0] - high.x) * kUnit, (y[1] - high.y) * kUnit);
  }
  const int64_t rows = plane_rows(o.source);
  __half* to = o.planes + matrix * kTwoPlanes * rows * o.source.ld + k;
#pragma unroll
  for (int plane = 0; plane < kTwoPlanes; ++plane, to += rows * o.source.ld) {
    uint4 bits;
    memcpy(&bits, planes[plane], sizeof(bits));
    write_plane<kComplex>(o.source, to, row, bits);
  }
}

template <bool kComplex>
__global__ void __launch_bounds__(kSplitThreads, kBlocksOfSm) scaled_kernel(const __grid_constant__ ScaledParams p) {
  __shared__ SharedPiece shared;
  __shared__ RowStats stats[kMostBlocks][kSplitRows];  // by the rank of the block that has seen it
  __shared__ float factors[kSplitRows];
  __shared__ uint64_t has_stats;  // a barrier: completes when all blocks have stored theirs
  const int rank = static_cast<int>(blockIdx.y), blocks = static_cast<int>(gridDim.y);
  const uint32_t bar = ptx::smem_addr(&has_stats);
  if constexpr (kHasClusters) {
    if (threadIdx.x == 0) {
      ptx::mbarrier_init(bar, 1);
      ptx::fence_mbarrier_init();
      ptx::mbarrier_arrive_expect_tx(bar, blocks * kSplitRows * static_cast<uint32_t>(sizeof(RowStats)));
    }
    __syncwarp();
    ptx::cluster_arrive_relaxed();
  }
  ptx::grid_launch_dependents();
  ptx::grid_dependency_wait();
  if (blockIdx.x == 0 && blockIdx.y == 0) {
    for (int i = threadIdx.x; i < p.count; i += kSplitThreads) p.counters[i] = 0;
    if (threadIdx.x == 0 && p.inaccurate != nullptr) *p.inaccurate = 0;
  }
  const bool is_a = blockIdx.x < p.groups_a;
  const ScaledOperand& o = is_a ? p.a : p.b;
  const RowBlock at = row_block_at(o.source, blockIdx.x - (is_a ? 0 : p.groups_a));
  const int part = (o.source.pieces + blocks - 1) / blocks, first = rank * part;
  const int last = min(o.source.pieces, first + part);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;

  float x[kHeld][kRowsOfWarp][kLaneK];
  const auto load = [&](int piece) {
#pragma unroll
    for (int h = 0; h < kHeld; ++h) {
      if (piece + h < last) load_piece<kComplex>(o.source, at, piece + h, shared, x[h]);
    }
  };
  Seen<kComplex> seen[kRowsOfWarp];
#pragma unroll 1
  for (int piece = first; piece < last; piece += kHeld) {
    load(piece);
#pragma unroll
    for (int h = 0; h < kHeld; ++h) {
      if (piece + h >= last) break;
#pragma unroll
      for (int r = 0; r < kRowsOfWarp; ++r) seen[r].add(x[h][r]);
    }
  }
  // Each warp sends what it has seen of its rows to all blocks of the cluster, a lane to each.
  if constexpr (kHasClusters) ptx::cluster_wait();  // until the other blocks have started
#pragma unroll
  for (int r = 0; r < kRowsOfWarp; ++r) {
    const auto most = static_cast<int32_t>(__reduce_max_sync(~0u, seen[r].top()));
    const auto least = static_cast<int32_t>(__reduce_min_sync(~0u, seen[r].bottom));
    const auto terms = static_cast<int32_t>(__reduce_add_sync(~0u, static_cast<uint32_t>(seen[r].terms)));
    const auto signs = static_cast<int32_t>(__reduce_or_sync(~0u, seen[r].signs()));
    const int row = warp * kRowsOfWarp + r;
    if (blocks > 1) {  // NOTE: in a launch without clusters, st.async is an illegal instruction
      if constexpr (kHasClusters) {
        if (lane < blocks) {
          const uint32_t to = ptx::cluster_map(ptx::smem_addr(stats[rank]), lane) + row * int{sizeof(RowStats)};
          ptx::cluster_store_async_16(to, most, least, terms, signs, ptx::cluster_map(bar, lane));
        }
      }
    } else if (lane == 0) {
      stats[0][row] = {static_cast<uint32_t>(most), static_cast<uint32_t>(least), static_cast<uint32_t>(terms),
                       static_cast<uint32_t>(signs)};
    }
  }
  if (blocks > 1) {
    if constexpr (kHasClusters) ptx::mbarrier_wait(bar, 0);  // after it no block writes here, so each may end
  } else {
    __syncwarp();  // the warp reads only what it has written
  }
  // Lane l reads what one block has seen of row l / kMostBlocks of the warp.
  const int peer = lane % static_cast<int>(kMostBlocks),
            row = warp * kRowsOfWarp + lane / static_cast<int>(kMostBlocks);
  RowStats all = peer < blocks ? stats[peer][row] : RowStats{};
#pragma unroll
  for (int distance = 1; distance < static_cast<int>(kMostBlocks); distance *= 2) {
    all.most = max(all.most, __shfl_xor_sync(~0u, all.most, distance));
    all.least = min(all.least, __shfl_xor_sync(~0u, all.least, distance));
    all.terms += __shfl_xor_sync(~0u, all.terms, distance);
    all.signs |= __shfl_xor_sync(~0u, all.signs, distance);
  }
  const int of_most = static_cast<int>(all.most >> 23) - 127;  // a denormal's is too small, infinity's too large
  const bool is_never = all.most != 0 && (of_most < kLeastExponent || of_most > kMostExponent);
  const int exponent = all.most == 0 || is_never ? 0 : kTop - of_most;
  if (peer == 0) factors[row] = __uint_as_float(static_cast<uint32_t>(127 + exponent) << 23);
  __syncwarp();
  const int twin = o.source.is_complex_b;  // two rows of the planes have the same magnitudes
  if (rank == 0 && peer <= twin && row < at.rows) {
    const int of_least = static_cast<int>((all.least + 1) / 2 >> 23) - 127;
    const bool is_small = all.most != 0 && of_least + exponent < kSmallest;
    Scale scale{};
    scale.least = is_never ? kNever : is_small ? kLeastOfElement * static_cast<float>(all.terms) : 0.0f;
    scale.exponent = static_cast<int8_t>(exponent);
    scale.is_one_sign = is_one_sign_row<kComplex>(o.source, all.signs, peer);
    scale.terms = static_cast<uint16_t>(min(all.terms, kManyTerms));
    o.scales[at.matrix * plane_rows(o.source) + ((at.row0 + row) << twin) + peer] = scale;
  }

#pragma unroll 1
  for (int piece = first; piece < last; piece += kHeld) {
    if (part > kHeld) load(piece);
#pragma unroll
    for (int h = 0; h < kHeld; ++h) {
      if (piece + h >= last) break;
#pragma unroll
      for (int r = 0; r < kRowsOfWarp; ++r) {
        const int to = warp * kRowsOfWarp + r;
        if (to >= at.rows) break;
        split_scaled<kComplex>(o, x[h][r], factors[to], at.matrix, at.row0 + to, (piece + h) * kPiece + lane * kLaneK);
      }
    }
  }
}

ScaledOperand scaled_operand(const Side& side) {
  return {source_of(side), reinterpret_cast<__half*>(side.memory),
          reinterpret_cast<Scale*>(side.memory + side.planes.tiny_at)};
}

}  // namespace

Status launch_scaled_pass(const Problem& p, const DeviceFacts& facts, const Memory& memory, unsigned* counters,
                          int count, Stream stream) {
  const Side a = side_a(p, memory, kTwoPlanes), b = side_b(p, memory, kTwoPlanes);
  ScaledParams params{};
  params.a = scaled_operand(a);
  params.b = scaled_operand(b);
  params.groups_a = memory.changed.a ? row_blocks_of(a) : 0;
  params.counters = counters;
  params.count = count;
  params.inaccurate = memory.is_first ? memory.inaccurate : nullptr;
  const uint32_t groups = params.groups_a + (memory.changed.b ? row_blocks_of(b) : 0);
  if (groups == 0) return cudaSuccess;  // then there are no counters either
  const unsigned most_blocks = has_clusters(facts.cc) && has_sm90_code() ? kMostBlocks : 1;
  unsigned blocks = 1;  // some may have no segment of K: with fewer blocks, others would read theirs twice
  while (blocks < most_blocks && blocks < static_cast<unsigned>(a.planes.pieces)) blocks *= 2;
  const auto kernel = p.is_real_form ? scaled_kernel<true> : scaled_kernel<false>;
  return enqueue_clusters(kernel, dim3(groups, blocks), kSplitThreads, 0, blocks, true,
                          static_cast<cudaStream_t>(stream), params);
}

}  // namespace hgemm::tile::split
