// The form of batched_mma for unaligned matrices without gaps that are larger than those of whole_kernel.cuh: mma.sync
// m16n8k16 on sm_80 and newer.
//
// As there, a matrix is one span of memory, which cp.async copies in aligned chunks, and whose rows are then shifted
// into place for ldmatrix. Here the tile takes the place of its span: every thread reads its chunks of the span into
// registers, and writes them after a barrier. Shared memory has the sizes of these matrices, so that several blocks
// share an SM, and hide each other's latency. Rows of a tile lie an odd number of chunks apart: eight of them are in
// different banks.
//
// A warp computes one sub-tile (16 MI of X, 32 of Y) of D after another. X is A and Y is B, except if A is MN-major:
// then D^T = B^T A^T is computed. Four lanes hold neighbouring columns of a sub-tile, and eight such groups hold rows;
// a K-major X is spread so that these rows lie eight apart. If rows of D have an odd length, the lanes then store to
// different banks. Where X is MN-major and D has rows of about 32 elements or a multiple, the four lanes store blocks
// of eight columns in different orders instead.
//
// A block computes one matrix of the batch after another. All its threads meet
//
//   at a barrier                      after it
//   when the spans have arrived       nobody stores results of the previous matrix any more
//   when X has been read              its tile can be written
//   when Y has been read              its tile can be written; that of X is complete
//   when the tile of Y is written     it can be read
//   when all results are there        they can be stored, and nobody reads the tiles: the next spans may arrive
//
// The products of each result are added in the same order as in kernel.cuh.
#pragma once

#include <type_traits>

#include "core/convert.cuh"
#include "core/problem.h"
#include "kernels/batched_mma/config.h"
#include "kernels/batched_mma/kernel.cuh"
#include "kernels/batched_mma/whole_kernel.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/dependent_launch.cuh"
#include "ptx/ld_shared.cuh"
#include "ptx/ldmatrix.cuh"
#include "ptx/mma.cuh"
#include "ptx/shared.cuh"
#include "ptx/smem_addr.cuh"

namespace hgemm::batched_mma {

/// The compile-time parameters of the kernel: InPlaceConfig, element type, memory orders of A and B.
template <class Config_, class T_, Major kMajorA, Major kMajorB>
struct InPlaceTraits : Config_ {
  using T = T_;
  static constexpr bool kSwaps = kMajorA == Major::kMN;  // X is B, and Y is A
  static constexpr bool kKMajorX = (kSwaps ? kMajorB : kMajorA) == Major::kK;
  static constexpr bool kKMajorY = (kSwaps ? kMajorA : kMajorB) == Major::kK;
};

/// An operand.
struct InPlaceOperand {
  const uint16_t* first;
  int64_t batch[2];  // batch strides in elements, outer and inner
  Extent of;
  InPlaceTile tile;
  uint32_t inverse;          // 2^16 over the chunks of a row, rounded up
  int row_step, chunk_step;  // from a thread's chunk to its next one
};

/// The run-time parameters. Strides count elements.
struct InPlaceParams {
  InPlaceOperand x, y;
  uint16_t* d;
  int64_t d_batch[2];
  uint32_t batches, batch_inner;
  int m, n, k;
  float alpha;
  int tiles_x, tiles;  // sub-tiles along X; all of them
  int rotates;         // 1 if the four lanes store in different orders, or 0
  uint32_t inverse_x;  // 2^16 over tiles_x, rounded up
};

/// The place of a row of a spread X in its tile. Of 64 rows, eight neighbours of the tile are eight apart; of the last
/// ones fewer.
__device__ __forceinline__ int slot_of(int row, const InPlaceTile& tile) {
  const bool is_full = row < tile.full_rows;
  const uint32_t rest = static_cast<uint32_t>(row) % 64, apart = is_full ? 8 : tile.apart;
  const uint32_t r = rest * (is_full ? 1u << 13 : tile.inverse_apart) >> 16;
  return static_cast<int>(row - rest + (rest - r * apart) * 8 + r);
}

/// The row that group `group` of eight rows of the tile has for its lane `r`; or -1.
__device__ __forceinline__ int row_of(int group, int r, const InPlaceTile& tile) {
  if (group * 8 < tile.full_rows) return group / 8 * 64 + group % 8 + r * 8;
  const int i = group - tile.full_rows / 8;
  return i < tile.apart ? tile.full_rows + r * tile.apart + i : -1;
}

/// The chunks of a tile that a thread has read from the span, and shifted into place. What is behind a row in its last
/// chunk is not zeroed: add_products() does that where it matters.
template <int THREADS, int CHUNKS, bool kSpreads>
class Held {
 public:
  /// Reads them from the span, whose first element is number `skew` at `span`.
  __device__ __forceinline__ void read(uint32_t span, int skew, const InPlaceOperand& x) {
    for_each(x, [&](int row, int chunk, int c) {
      // Without a branch, so that loads do not wait for each other. Threads that have no such chunk read another one.
      const uint32_t at = skew + min(row, x.tile.rows - 1) * x.tile.length + 8 * chunk;
      uint32_t w[8];
      ptx::ld_shared_16(w[0], w[1], w[2], w[3], span + at / 8 * 16);
      ptx::ld_shared_16(w[4], w[5], w[6], w[7], span + at / 8 * 16 + 16);
      shift(w, at, chunks_[c]);
    });
  }

  /// Writes them to the tile.
  __device__ __forceinline__ void write(uint32_t tile, const InPlaceOperand& x) const {
    for_each(x, [&](int row, int chunk, int c) {
      if (row >= x.tile.rows) return;
      ptx::st_shared_16(tile + (kSpreads ? slot_of(row, x.tile) : row) * x.tile.pitch + chunk * 16, chunks_[c]);
    });
  }

 private:
  static constexpr int kAtATime = 2;
  static_assert(CHUNKS % kAtATime == 0);

  /// Calls `use` with the row, the chunk of it and the number of each chunk that this thread moves, and of some more,
  /// whose rows the span lacks.
  template <class Use>
  __device__ __forceinline__ void for_each(const InPlaceOperand& x, const Use& use) const {
    const uint32_t thread = ptx::opaque(threadIdx.x);
    int row = static_cast<int>(thread * x.inverse >> 16), chunk = static_cast<int>(thread) - row * x.tile.chunks;
    const int all = x.tile.rows * x.tile.chunks;
#pragma unroll
    for (int c = 0; c < CHUNKS; c += kAtATime) {
      if (c * THREADS < all) {
#pragma unroll
        for (int i = 0; i < kAtATime; ++i) {
          use(row, chunk, c + i);
          row += x.row_step;
          chunk += x.chunk_step;
          if (chunk >= x.tile.chunks) {
            chunk -= x.tile.chunks;
            ++row;
          }
        }
      }
    }
  }

  uint32_t chunks_[CHUNKS][4] = {};  // left uninitialised, they would be kept in local memory
};

/// Where this lane reads 16 (outer) x 16 (k) elements of a tile by ldmatrix, from outer index `origin` and k = 0 on.
/// `outer8` and `k8` (0 or 1) select one of its 8x8 matrices. Indices beyond the tile stand for its last row or chunk.
template <bool kKMajor>
__device__ __forceinline__ uint32_t block_address(uint32_t tile, const InPlaceTile& t, int origin, int outer8, int k8) {
  const int r = static_cast<int>(threadIdx.x) % 8;
  const int row = kKMajor ? min(origin + outer8 * 8 + r, t.outer - 1) : k8 * 8 + r;
  const int chunk = kKMajor ? k8 : min(origin / 8 + outer8, t.chunks - 1);
  return tile + row * t.pitch + chunk * 16;
}

template <bool kKMajor>
__device__ __forceinline__ void load_block(uint32_t (&r)[4], uint32_t address) {
  if constexpr (kKMajor) {
    ptx::ldmatrix_x4(r, address);
  } else {
    ptx::ldmatrix_x4_trans(r, address);
  }
}

/// A mask of two elements, of which the first `count` are kept.
__device__ __forceinline__ uint32_t keep(int count) {
  return count >= 2 ? ~0u : count == 1 ? 0xffff : 0;
}

/// Adds up the products of 16 ROWS rows of X and 16 COLS columns of Y. `x` and `y` are the lane's addresses of the
/// first 16 k. Each further 16 k lie `step_x` and `step_y` bytes behind.
template <class Traits, int ROWS, int COLS>
__device__ __forceinline__ void add_products(float (&acc)[Traits::MI][4][4], const uint32_t (&x)[Traits::MI],
                                             const uint32_t (&y)[2], uint32_t step_x, uint32_t step_y, int k) {
  uint32_t at_x = 0, at_y = 0;
  const auto add = [&](auto masks, int left) {
    uint32_t frag_x[ROWS][4], frag_y[COLS][4];
#pragma unroll
    for (int i = 0; i < ROWS; ++i) load_block<Traits::kKMajorX>(frag_x[i], x[i] + at_x);
#pragma unroll
    for (int j = 0; j < COLS; ++j) load_block<Traits::kKMajorY>(frag_y[j], y[j] + at_y);
    if constexpr (decltype(masks)::value) {
      const uint32_t mask[2] = {keep(left), keep(left - 8)};
#pragma unroll
      for (int i = 0; i < 4 * ROWS; ++i) frag_x[i / 4][i % 4] &= mask[i % 4 / 2];
#pragma unroll
      for (int j = 0; j < 4 * COLS; ++j) frag_y[j / 4][j % 4] &= mask[j % 2];
    }
#pragma unroll
    for (int i = 0; i < ROWS; ++i) {
#pragma unroll
      for (int j = 0; j < 2 * COLS; ++j) {
        ptx::Mma<typename Traits::T>::m16n8k16(acc[i][j], frag_x[i], frag_y[j / 2][j % 2 * 2],
                                               frag_y[j / 2][j % 2 * 2 + 1]);
      }
    }
    at_x += step_x;
    at_y += step_y;
  };
  int left = k;
#pragma unroll 2
  for (; left > 16; left -= 16) add(std::false_type(), 0);
  add(std::true_type(), left - static_cast<int>(threadIdx.x) % 4 * 2);
}

/// The same for at least `rows` times 16 rows of X, and 32 columns or, unless `both`, 16.
template <class Traits, int ROWS>
__device__ __forceinline__ void add_needed(float (&acc)[Traits::MI][4][4], const uint32_t (&x)[Traits::MI],
                                           const uint32_t (&y)[2], uint32_t step_x, uint32_t step_y, int k, int rows,
                                           bool both) {
  if constexpr (ROWS > 1) {
    if (rows <= ROWS / 2) return add_needed<Traits, ROWS / 2>(acc, x, y, step_x, step_y, k, rows, both);
  }
  if (both) {
    add_products<Traits, ROWS, 2>(acc, x, y, step_x, step_y, k);
  } else {
    add_products<Traits, ROWS, 1>(acc, x, y, step_x, step_y, k);
  }
}

/// Element j becomes what element j + BY modulo 4 was, if `rotates`.
template <int BY>
__device__ __forceinline__ void rotate(float (&v)[4][2], bool rotates) {
  float old[4][2];
#pragma unroll
  for (int j = 0; j < 8; ++j) old[j / 2][j % 2] = v[j / 2][j % 2];
#pragma unroll
  for (int j = 0; j < 8; ++j) v[j / 2][j % 2] = rotates ? old[(j / 2 + BY) % 4][j % 2] : old[j / 2][j % 2];
}

template <class Traits>
__global__ void __launch_bounds__(Traits::kThreads, Traits::RESIDENT)
    in_place_kernel(const __grid_constant__ InPlaceParams p) {
  using T = typename Traits::T;
  constexpr int kThreads = Traits::kThreads, WARPS = Traits::WARPS, CHUNKS = Traits::CHUNKS, MI = Traits::MI;
  constexpr bool kKMajorX = Traits::kKMajorX, kKMajorY = Traits::kKMajorY;
  extern __shared__ __align__(128) unsigned char smem[];  // span or tile of X; of Y; results
  unsigned char *const smem_y = smem + p.x.tile.bytes, *const smem_d = smem_y + p.y.tile.bytes;
  const uint32_t tile_x = ptx::smem_addr(smem), tile_y = ptx::smem_addr(smem_y);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int half = lane / 8 % 2, other = lane / 16;
  const int extent_x = Traits::kSwaps ? p.n : p.m, extent_y = Traits::kSwaps ? p.m : p.n;
  const int stride_x = Traits::kSwaps ? 1 : p.n, stride_y = Traits::kSwaps ? p.n : 1;
  const int count_d = p.m * p.n;
  const int count_x = p.x.tile.rows * p.x.tile.length, count_y = p.y.tile.rows * p.y.tile.length;
  const uint32_t step_x = kKMajorX ? 32 : 16 * p.x.tile.pitch, step_y = kKMajorY ? 32 : 16 * p.y.tile.pitch;

  Cursor problem(p.batches, p.batch_inner, blockIdx.x, gridDim.x);
  const uint16_t *x = p.x.first + problem.offset(p.x.batch), *y = p.y.first + problem.offset(p.y.batch);
  ptx::grid_dependency_wait();
  ptx::grid_launch_dependents();
  fetch_span<kThreads>(smem, x, count_x, p.x.of);  // the grid has no more blocks than matrices
  fetch_span<kThreads>(smem_y, y, count_y, p.y.of);
  ptx::cp_async_commit();
  while (problem.inside()) {
    ptx::cp_async_wait<0>();
    __syncthreads();
    {
      Held<kThreads, CHUNKS, kKMajorX> held;
      held.read(tile_x, skew_of(x), p.x);
      __syncthreads();
      held.write(tile_x, p.x);
    }
    {
      Held<kThreads, CHUNKS, false> held;
      held.read(tile_y, skew_of(y), p.y);
      __syncthreads();
      held.write(tile_y, p.y);
    }
    __syncthreads();

    uint16_t* const d = p.d + problem.offset(p.d_batch);
    const int skew = skew_of(d);
    T* const results = reinterpret_cast<T*>(smem_d) + skew;
    for (int t = warp; t < p.tiles; t += WARPS) {
      const int index_y = static_cast<int>(t * p.inverse_x >> 16);
      const int x0 = (t - index_y * p.tiles_x) * (16 * MI), y0 = index_y * 32;
      uint32_t at_x[MI], at_y[2];
#pragma unroll
      for (int i = 0; i < MI; ++i) at_x[i] = block_address<kKMajorX>(tile_x, p.x.tile, x0 + 16 * i, half, other);
#pragma unroll
      for (int j = 0; j < 2; ++j) at_y[j] = block_address<kKMajorY>(tile_y, p.y.tile, y0 + 16 * j, other, half);
      float acc[MI][4][4] = {};
      add_needed<Traits, MI>(acc, at_x, at_y, step_x, step_y, p.k, (p.x.tile.outer - x0 + 15) / 16, y0 + 16 < extent_y);
      const int col = y0 + lane % 4 * 2, rotation = kKMajorX ? 0 : lane % 4 * p.rotates;
#pragma unroll
      for (int i = 0; i < 2 * MI; ++i) {
        const int row = kKMajorX ? row_of(x0 / 8 + i, lane / 4, p.x.tile) : x0 + 8 * i + lane / 4;
        if (row < 0 || row >= extent_x) continue;
        T* const to = results + row * stride_x + col * stride_y;
        float v[4][2];
#pragma unroll
        for (int j = 0; j < 4; ++j) {
#pragma unroll
          for (int e = 0; e < 2; ++e) v[j][e] = p.alpha * acc[i / 2][j][i % 2 * 2 + e];
        }
        if constexpr (!kKMajorX) {
          rotate<1>(v, rotation % 2 != 0);
          rotate<2>(v, rotation / 2 != 0);
        }
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const int at = kKMajorX ? 8 * j : (j + rotation) % 4 * 8, left = extent_y - col - at;
          if (left > 0) to[at * stride_y] = from_float<T>(v[j][0]);
          if (left > 1) to[(at + 1) * stride_y] = from_float<T>(v[j][1]);
        }
      }
      __syncwarp();  // the next sub-tile begins with ldmatrix, which all lanes execute together
    }
    __syncthreads();
    problem.advance();
    if (problem.inside()) {
      x = p.x.first + problem.offset(p.x.batch);
      y = p.y.first + problem.offset(p.y.batch);
      fetch_span<kThreads>(smem, x, count_x, p.x.of);
      fetch_span<kThreads>(smem_y, y, count_y, p.y.of);
    }
    ptx::cp_async_commit();
    store_span<kThreads>(d, skew, count_d, reinterpret_cast<const uint16_t*>(smem_d));
  }
}

}  // namespace hgemm::batched_mma
