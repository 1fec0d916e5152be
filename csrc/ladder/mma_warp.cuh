// A warp tile computed with mma.sync m16n8k16, the instruction under WMMA. Unlike WMMA, ldmatrix loads fragments from
// any layout of the tile, and the position of every accumulator element is known.
#pragma once

#include <type_traits>

#include "ladder/tensor_core.cuh"
#include "ptx/ldmatrix.cuh"
#include "ptx/mma.cuh"

namespace hgemm::ladder {

/// How results leave the registers: each lane stores its own pairs, or the warp stores whole rows by way of shared
/// memory.
enum class Epilogue { kDirect, kCoalesced };

/// The registers of a 16x8 accumulator. Lane l holds the pair that starts at (l / 4, 2 * (l % 4)) and the pair eight
/// rows below it.
template <Arithmetic kSums>
using Sums = std::conditional_t<kSums == Arithmetic::kAccumulateF32, float[4], uint32_t[2]>;

/// This lane's pair of an accumulator as float16: the upper pair for `half` 0, the one eight rows below it for 1.
__device__ __forceinline__ uint32_t pair_of(const float (&sums)[4], int half) {
  const __half2 pair = __floats2half2_rn(sums[2 * half], sums[2 * half + 1]);
  return *reinterpret_cast<const uint32_t*>(&pair);
}
__device__ __forceinline__ uint32_t pair_of(const uint32_t (&sums)[2], int half) {
  return sums[half];
}

/// Writes the elements of the pair at (row, col) that lie inside D.
__device__ __forceinline__ void store_pair(const Gemm& g, int row, int col, uint32_t pair) {
  __half* const d = g.d + static_cast<int64_t>(row) * g.n + col;
  if (row >= g.m || col >= g.n) return;
  if (g.pairs_fit_d) {
    *reinterpret_cast<uint32_t*>(d) = pair;
  } else {
    d[0] = __ushort_as_half(static_cast<unsigned short>(pair));
    if (col + 1 < g.n) d[1] = __ushort_as_half(static_cast<unsigned short>(pair >> 16));
  }
}

template <class Traits, Epilogue kEpilogue>
class MmaWarp {
  using LayoutA = typename Traits::ShapeA::Layout;
  using LayoutB = typename Traits::ShapeB::Layout;
  static_assert(Traits::FRAG_M == 16 && Traits::FRAG_N == 8 && Traits::WM % 16 == 0 && Traits::WN % 16 == 0);

 public:
  static constexpr int MI = Traits::WM / 16, NJ = Traits::WN / 8;
  static constexpr int kScratchPitch = Traits::WN + 8;  // elements
  static constexpr int kScratchBytes = kEpilogue == Epilogue::kCoalesced ? 16 * kScratchPitch * 2 : 0;
  using FragmentsA = uint32_t[4];          // (16, 16): (m 0, k 0), (m 8, k 0), (m 0, k 8), (m 8, k 8)
  using FragmentsB = uint32_t[NJ / 2][4];  // two (16, 8) each: (n 0, k 0), (n 0, k 8), (n 8, k 0), (n 8, k 8)

  __device__ __forceinline__ MmaWarp() {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    row_ = warp / Traits::WARPS_N * Traits::WM;
    col_ = warp % Traits::WARPS_N * Traits::WN;
    lane_a_ = LayoutA::offset(row_ + lane % 16, lane / 16);
    lane_b_ = LayoutB::offset(lane % 16, col_ / 8 + lane / 16);
  }

  /// Loads A's fragment at row 16 i of the warp tile and k = 16 step. `tile`: the shared address of A's tile.
  __device__ __forceinline__ void load_a(FragmentsA& a, uint32_t tile, int i, int step) const {
    ptx::ldmatrix_x4(a, tile + LayoutA::move(lane_a_, i * 16, step * 2));
  }
  /// Loads B's fragments at columns 16 j and 16 j + 8 of the warp tile and k = 16 step. B is row-major in shared memory
  /// and mma takes columns, so ldmatrix transposes.
  __device__ __forceinline__ void load_b(FragmentsB& b, uint32_t tile, int j, int step) const {
    ptx::ldmatrix_x4_trans(b[j], tile + LayoutB::move(lane_b_, step * 16, j * 2));
  }
  /// Multiplies row i of the warp tile's fragments. Odd rows go from right to left, so that the B fragment where the
  /// direction changes is reused.
  __device__ __forceinline__ void multiply_row(int i, const FragmentsA& a, const FragmentsB& b) {
#pragma unroll
    for (int jj = 0; jj < NJ; ++jj) {
      const int j = i % 2 == 0 ? jj : NJ - 1 - jj;
      ptx::Mma<__half>::m16n8k16(acc_[i][j], a, b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]);
    }
  }

  /// Accumulates A @ B for the tiles A (BM, BK) and B (BK, BN) in shared memory.
  __device__ __forceinline__ void multiply(const unsigned char* tile_a, const unsigned char* tile_b) {
    const uint32_t at_a = ptx::smem_addr(tile_a), at_b = ptx::smem_addr(tile_b);
#pragma unroll
    for (int step = 0; step < Traits::kSteps; ++step) {
      FragmentsA a[MI];
      FragmentsB b;
#pragma unroll
      for (int i = 0; i < MI; ++i) load_a(a[i], at_a, i, step);
#pragma unroll
      for (int j = 0; j < NJ / 2; ++j) load_b(b, at_b, j, step);
#pragma unroll
      for (int i = 0; i < MI; ++i) multiply_row(i, a[i], b);
    }
  }

  /// Writes the warp's results; the block tile starts at (row, col). `scratch`: kScratchBytes for each warp.
  __device__ __forceinline__ void store(const Gemm& g, int row, int col, unsigned char* scratch) const {
    if constexpr (kEpilogue == Epilogue::kDirect) {
      store_pairs(g, row + row_, col + col_);
    } else {
      store_rows(g, row + row_, col + col_,
                 reinterpret_cast<__half*>(scratch) + threadIdx.x / 32 * (kScratchBytes / 2));
    }
  }

 private:
  __device__ __forceinline__ void store_pairs(const Gemm& g, int row, int col) const {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < MI; ++i) {
#pragma unroll
      for (int j = 0; j < NJ; ++j) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          store_pair(g, row + i * 16 + half * 8 + lane / 4, col + j * 8 + lane % 4 * 2, pair_of(acc_[i][j], half));
        }
      }
    }
  }

  /// Writes sixteen rows at a time through `scratch` (16, kScratchPitch), so that a warp writes WN consecutive elements
  /// at once.
  __device__ __forceinline__ void store_rows(const Gemm& g, int row, int col, __half* scratch) const {
    constexpr int kLanesPerRow = Traits::WN / 8, kRowsPerPass = 32 / kLanesPerRow;
    const int lane = threadIdx.x % 32, r = lane / kLanesPerRow, c = lane % kLanesPerRow * 8;
#pragma unroll
    for (int i = 0; i < MI; ++i) {
#pragma unroll
      for (int j = 0; j < NJ; ++j) {
        __half* const at = scratch + lane / 4 * kScratchPitch + j * 8 + lane % 4 * 2;
        *reinterpret_cast<uint32_t*>(at) = pair_of(acc_[i][j], 0);
        *reinterpret_cast<uint32_t*>(at + 8 * kScratchPitch) = pair_of(acc_[i][j], 1);
      }
      __syncwarp();
#pragma unroll
      for (int pass = 0; pass < 16; pass += kRowsPerPass) {
        const uint4 chunk = *reinterpret_cast<const uint4*>(scratch + (pass + r) * kScratchPitch + c);
        store_chunk(g, row + i * 16 + pass + r, col + c, chunk);
      }
      __syncwarp();
    }
  }
  static __device__ __forceinline__ void store_chunk(const Gemm& g, int row, int col, const uint4& chunk) {
    if (g.chunks_fit_d) {
      if (row < g.m && col < g.n) *reinterpret_cast<uint4*>(g.d + static_cast<int64_t>(row) * g.n + col) = chunk;
    } else {
      store_pair(g, row, col, chunk.x);
      store_pair(g, row, col + 2, chunk.y);
      store_pair(g, row, col + 4, chunk.z);
      store_pair(g, row, col + 6, chunk.w);
    }
  }

  int row_, col_;             // of the warp tile in the block tile
  uint32_t lane_a_, lane_b_;  // offsets of this lane's ldmatrix row
  Sums<Traits::kSums> acc_[MI][NJ] = {};
};

}  // namespace hgemm::ladder
