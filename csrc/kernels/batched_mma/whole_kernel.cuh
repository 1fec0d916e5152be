// The form of batched_mma for unaligned matrices that lie in memory without gaps: mma.sync m16n8k16 on sm_80 and newer.
//
// A matrix without gaps between its rows is one span of memory. cp.async copies the span to shared memory in aligned
// chunks of 16 bytes, whatever the alignment of its rows. The block then moves the rows to a swizzled tile, eight
// elements at a time, and shifts them into place on the way, so that ldmatrix reads all fragments. Results are put
// together in shared memory as they lie in D, and stored in aligned chunks as well.
//
// A block computes one matrix of the batch after another. The spans of the next one arrive while the block multiplies;
// the blocks of an SM hide the rest of each other's latency. All threads of the block meet
//
//   when the spans have arrived           nobody stores results of the previous matrix any more
//   when the tiles are written            nobody reads the spans any more: the next ones may arrive
//   when all fragments have been read     results take the place of the tiles
//   when all results are there            they can be stored
//
// The products of each result are added in the same order as in kernel.cuh.
#pragma once

#include "core/convert.cuh"
#include "core/problem.h"
#include "kernels/batched_mma/config.h"
#include "kernels/batched_mma/kernel.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/dependent_launch.cuh"
#include "ptx/global.cuh"
#include "ptx/ld_shared.cuh"
#include "ptx/mma.cuh"
#include "ptx/shared.cuh"
#include "ptx/smem_addr.cuh"
#include "tile/smem_operand.cuh"

namespace hgemm::batched_mma {

/// The compile-time parameters of the kernel: WholeConfig, element type, memory orders of A and B.
template <class Config_, class T_, Major kMajorA_, Major kMajorB_>
struct WholeTraits : Config_ {
  using T = T_;
  static constexpr Major kMajorA = kMajorA_, kMajorB = kMajorB_;
};

/// The memory of an operand: the addresses of its first element, and behind its last one.
struct Extent {
  uint64_t begin, end;
};

/// The run-time parameters. Strides count elements.
struct WholeParams {
  const uint16_t *a, *b;
  uint16_t* d;
  int64_t a_batch[2], b_batch[2], d_batch[2];  // batch strides, outer and inner
  Extent of_a, of_b;
  uint32_t batches, batch_inner;  // matrices in the batch; extent of the inner batch dimension
  int m, n, k;
  float alpha;
  int chunks_a, chunks_b;         // chunks of eight elements of a row of the tile
  uint32_t inverse_a, inverse_b;  // 2^16 over that, rounded up
};

/// How many elements lie between an address and the aligned chunk of 16 bytes below it.
__device__ __forceinline__ int skew_of(const uint16_t* x) {
  return static_cast<int>(reinterpret_cast<uint64_t>(x) / 2 % 8);
}

/// Starts copying the aligned chunks that cover `count` elements at `from` to shared memory. Chunks that reach beyond
/// the operand are copied element by element.
template <int THREADS>
__device__ __forceinline__ void fetch_span(unsigned char* to, const uint16_t* from, int count, const Extent& extent) {
  const int skew = skew_of(from), chunks = (skew + count + 7) / 8;
  const uint16_t* const first = from - skew;
  const auto inside = [&](const uint16_t* x, int elements) {
    return reinterpret_cast<uint64_t>(x) >= extent.begin && reinterpret_cast<uint64_t>(x + elements) <= extent.end;
  };
  const uint32_t dst = ptx::smem_addr(to);
  const bool all_inside = inside(first, 8 * chunks);
  for (int i = static_cast<int>(threadIdx.x); i < chunks; i += THREADS) {
    if (all_inside || inside(first + 8 * i, 8)) {
      ptx::cp_async_16(dst + 16 * i, first + 8 * i, true);
    } else {
#pragma unroll 1
      for (int e = 8 * i; e < 8 * i + 8; ++e) {
        if (inside(first + e, 1)) reinterpret_cast<uint16_t*>(to)[e] = ptx::ld_2(first + e);
      }
    }
  }
}

/// The eight elements of two chunks of 16 bytes, `w`, from number `at` % 8 on.
__device__ __forceinline__ void shift(uint32_t (&w)[8], uint32_t at, uint32_t (&out)[4]) {
#pragma unroll
  for (int i = 0; i < 6; ++i) w[i] = at & 4 ? w[i + 2] : w[i];
#pragma unroll
  for (int i = 0; i < 5; ++i) w[i] = at & 2 ? w[i + 1] : w[i];
#pragma unroll
  for (int i = 0; i < 4; ++i) out[i] = __byte_perm(w[i], w[i + 1], at & 1 ? 0x5432 : 0x3210);
}

/// Stores `count` results to `d`, which lies `skew` elements behind an aligned chunk of 16 bytes, in aligned chunks.
/// They are in shared memory from number `skew` on.
template <int THREADS>
__device__ __forceinline__ void store_span(uint16_t* d, int skew, int count, const uint16_t* results) {
  uint16_t* const first = d - skew;
  for (int i = static_cast<int>(threadIdx.x) * 8; i < skew + count; i += THREADS * 8) {
    if (i >= skew && i + 8 <= skew + count) {
      *reinterpret_cast<uint4*>(first + i) = *reinterpret_cast<const uint4*>(results + i);
    } else {
#pragma unroll 1
      for (int e = max(i, skew); e < min(i + 8, skew + count); ++e) first[e] = results[e];
    }
  }
}

/// The row of the tile of A that holds its row `row`. The eight groups of lanes of mma.sync then have rows that lie
/// EXTENT / 8 apart in D: where rows have an odd length, they store to different banks.
template <int EXTENT>
__device__ __forceinline__ int spread(int row) {
  constexpr int kApart = EXTENT / 8;
  return row % kApart * 8 + row / kApart;
}

/// The chunks of eight elements that a thread moves from an operand's span to its tile, a tile::SmemOperand. They are
/// the same in each matrix of the batch.
template <class Tile, int THREADS, bool kSpreads>
class Rows {
  static constexpr int kCount = (Tile::kRows * Tile::kCols / 8 + THREADS - 1) / THREADS;
  static constexpr int kFromBits = 14, kToBits = 12;
  static constexpr uint32_t kNone = ~0u;
  static_assert(Tile::kRows * Tile::kCols <= 1 << kFromBits && Tile::kRows * Tile::kCols / 8 <= 1 << kToBits);

 public:
  /// The span holds `rows` rows of `length` elements. `chunks`: of a row of the tile, of which `all_rows` rows are
  /// written; what is not in the span is zero.
  __device__ __forceinline__ Rows(int rows, int length, int all_rows, int chunks, uint32_t inverse) {
#pragma unroll
    for (int c = 0; c < kCount; ++c) {
      const uint32_t i = threadIdx.x + c * THREADS;
      const int row = static_cast<int>(i * inverse >> 16), chunk = static_cast<int>(i) - row * chunks;
      const int valid = row < rows ? min(max(length - 8 * chunk, 0), 8) : 0;
      const uint32_t to = Tile::Layout::offset(kSpreads ? spread<Tile::kRows>(row) : row, chunk) / 16;
      const uint32_t from = valid > 0 ? row * length + 8 * chunk : 0;
      what_[c] =
          row < all_rows ? from | to << kFromBits | static_cast<uint32_t>(valid) << (kFromBits + kToBits) : kNone;
    }
  }

  /// Moves the elements from the span, whose first element is number `skew`, to the tile.
  __device__ __forceinline__ void move(uint32_t tile, uint32_t span, int skew) const {
#pragma unroll
    for (int c = 0; c < kCount; ++c) {
      const uint32_t what = what_[c];
      if (what == kNone) break;
      const uint32_t at = skew + what % (1 << kFromBits);
      const int valid = static_cast<int>(what >> (kFromBits + kToBits));
      uint32_t out[4] = {0, 0, 0, 0};
      if (valid > 0) {
        uint32_t w[8];
        ptx::ld_shared_16(w[0], w[1], w[2], w[3], span + at / 8 * 16);
        ptx::ld_shared_16(w[4], w[5], w[6], w[7], span + at / 8 * 16 + 16);
        shift(w, at, out);
        if (valid < 8) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            if (2 * i + 1 >= valid) out[i] = 2 * i >= valid ? 0 : out[i] & 0xffff;
          }
        }
      }
      ptx::st_shared_16(tile + what / (1 << kFromBits) % (1 << kToBits) * 16, out);
    }
  }

 private:
  uint32_t what_[kCount];  // where in the span and in the tile, and how many elements; or kNone
};

template <class Traits>
__global__ void __launch_bounds__(Traits::kThreads, Traits::RESIDENT)
    whole_kernel(const __grid_constant__ WholeParams p) {
  using T = typename Traits::T;
  constexpr int BM = Traits::BM, BN = Traits::BN, BK = Traits::BK, WM = Traits::WM, WN = Traits::WN;
  constexpr int kThreads = Traits::kThreads, MI = WM / 16, NJ = WN / 16;
  constexpr bool kKMajorA = Traits::kMajorA == Major::kK, kKMajorB = Traits::kMajorB == Major::kK;
  using TileA = tile::SmemOperand<BM, BK, Traits::kMajorA>;
  using TileB = tile::SmemOperand<BN, BK, Traits::kMajorB>;
  extern __shared__ __align__(128) unsigned char smem[];  // tiles of A and B, or results; spans of A and B
  unsigned char *const span_a = smem + Traits::kTileBytes, *const span_b = span_a + Traits::kSpanBytesA;
  const uint32_t tile_a = ptx::smem_addr(smem), tile_b = tile_a + Traits::kTileBytesA;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int warp_m = warp / (BN / WN) * WM, warp_n = warp % (BN / WN) * WN;

  const int half = lane / 8 % 2, other = lane / 16;
  const uint32_t lane_a = TileA::lane_offset(warp_m, half, other), lane_b = TileB::lane_offset(warp_n, other, half);
  const int count_a = p.m * p.k, count_b = p.n * p.k, count_d = p.m * p.n, steps = (p.k + 15) / 16;
  // A K-major row of a tile is filled up to a multiple of 16 k, an MN-major tile has as many rows.
  const Rows<TileA, kThreads, kKMajorA> rows_a(kKMajorA ? p.m : p.k, kKMajorA ? p.k : p.m, kKMajorA ? p.m : 16 * steps,
                                               p.chunks_a, p.inverse_a);
  const Rows<TileB, kThreads, false> rows_b(kKMajorB ? p.n : p.k, kKMajorB ? p.k : p.n, kKMajorB ? p.n : 16 * steps,
                                            p.chunks_b, p.inverse_b);

  Cursor problem(p.batches, p.batch_inner, blockIdx.x, gridDim.x);
  const uint16_t *a = p.a + problem.offset(p.a_batch), *b = p.b + problem.offset(p.b_batch);
  ptx::grid_dependency_wait();
  ptx::grid_launch_dependents();
  fetch_span<kThreads>(span_a, a, count_a, p.of_a);  // the grid has no more blocks than matrices
  fetch_span<kThreads>(span_b, b, count_b, p.of_b);
  ptx::cp_async_commit();
  while (problem.inside()) {
    ptx::cp_async_wait<0>();
    __syncthreads();
    rows_a.move(tile_a, ptx::smem_addr(span_a), skew_of(a));
    rows_b.move(tile_b, ptx::smem_addr(span_b), skew_of(b));
    __syncthreads();
    uint16_t* const d = p.d + problem.offset(p.d_batch);
    problem.advance();
    if (problem.inside()) {
      a = p.a + problem.offset(p.a_batch);
      b = p.b + problem.offset(p.b_batch);
      fetch_span<kThreads>(span_a, a, count_a, p.of_a);
      fetch_span<kThreads>(span_b, b, count_b, p.of_b);
    }
    ptx::cp_async_commit();

    float acc[MI][2 * NJ][4] = {};
    const bool has_results = (kKMajorA || warp_m < p.m) && warp_n < p.n;
    if (has_results) {
#pragma unroll
      for (int s = 0; s < BK / 16; ++s) {
        if (s >= steps) break;
        uint32_t frag_a[MI][4], frag_b[NJ][4];
#pragma unroll
        for (int i = 0; i < MI; ++i) TileA::load(frag_a[i], tile_a + TileA::at(lane_a, i, s));
#pragma unroll
        for (int j = 0; j < NJ; ++j) TileB::load(frag_b[j], tile_b + TileB::at(lane_b, j, s));
#pragma unroll
        for (int i = 0; i < MI; ++i) {
#pragma unroll
          for (int j = 0; j < 2 * NJ; ++j) {
            ptx::Mma<T>::m16n8k16(acc[i][j], frag_a[i], frag_b[j / 2][j % 2 * 2], frag_b[j / 2][j % 2 * 2 + 1]);
          }
        }
      }
    }
    __syncthreads();
    const int skew = skew_of(d);
    if (has_results) {
      T* const results = reinterpret_cast<T*>(smem) + skew;
#pragma unroll
      for (int i = 0; i < 2 * MI; ++i) {
        const int row = kKMajorA ? lane / 4 * (BM / 8) + warp_m / 8 + i : warp_m + 8 * i + lane / 4;
        if (row >= p.m) continue;
        const int col = warp_n + lane % 4 * 2, left = p.n - col;
        T* const to = results + row * p.n + col;
#pragma unroll
        for (int j = 0; j < 2 * NJ; ++j) {
          if (8 * j < left) to[8 * j] = from_float<T>(p.alpha * acc[i / 2][j][i % 2 * 2]);
          if (8 * j + 1 < left) to[8 * j + 1] = from_float<T>(p.alpha * acc[i / 2][j][i % 2 * 2 + 1]);
        }
      }
    }
    __syncthreads();
    store_span<kThreads>(d, skew, count_d, reinterpret_cast<const uint16_t*>(smem));
  }
}

}  // namespace hgemm::batched_mma
