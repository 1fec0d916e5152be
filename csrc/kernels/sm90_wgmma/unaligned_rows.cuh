// Copies results to rows of D that TMA cannot write, because they may start at any address.
#pragma once

#include <cstdint>

#include "ptx/shared.cuh"
#include "tile/chunk.cuh"

namespace hgemm::sm90_wgmma {

/// Stores the first `count` elements of `x`, fewer than eight. They end at a multiple of 16 bytes if `ends`, and are
/// then stored as 1, 2 and 4 elements. Otherwise they begin at a multiple of 16 bytes, and are stored as 4, 2 and 1.
template <class T>
__device__ __forceinline__ void store_end(T* to, const uint4& x, int count, bool ends) {
  const int at4 = ends ? count & 3 : 0, at2 = ends ? count & 1 : count & 4, at1 = ends ? 0 : count & 6;
  const uint32_t w0 = at4 & 2 ? x.y : x.x, w1 = at4 & 2 ? x.z : x.y, w2 = at4 & 2 ? x.w : x.z;
  const uint32_t two = __funnelshift_r(at2 & 4 ? x.z : x.x, x.y, at2 % 2 * 16);
  const uint32_t one = at1 & 4 ? (at1 & 2 ? x.w : x.z) : (at1 & 2 ? x.y : x.x);
  if (count & 4) {
    *reinterpret_cast<uint2*>(to + at4) =
        make_uint2(__funnelshift_r(w0, w1, at4 % 2 * 16), __funnelshift_r(w1, w2, at4 % 2 * 16));
  }
  if (count & 2) *reinterpret_cast<uint32_t*>(to + at2) = two;
  if (count & 1) *reinterpret_cast<uint16_t*>(to + at1) = static_cast<uint16_t>(one);
}

/// Copies at most 16 staged rows of HALVES * 32 columns to memory: of the first `rows_left` those that exist(r).
/// `row_at(r)` is the address of a row's first element. Stores are 16-byte chunks at addresses that are multiples of 16
/// bytes, each shifted out of two staged chunks; then come the elements before and behind these chunks. One warp, alone
/// on its scheduler, runs this function. So loads are issued kBatch at a time, as many as registers allow, and stores
/// are predicated, not branched around. `chunk_at(row, chunk)`: the address of a staged 16-byte chunk, in lines of 128
/// bytes whose swizzle repeats every eight rows.
template <class T, int HALVES, int kBatch, class RowAt, class Exists, class ChunkAt>
__device__ __forceinline__ void copy_staged_rows(const RowAt& row_at, const Exists& exists, int rows_left,
                                                 int cols_left, int lane_id, const ChunkAt& chunk_at) {
  constexpr int kLine = 128;
  constexpr int kChunks = 4 * HALVES, kRows = 32 / kChunks;  // chunks of a row; rows at a time
  constexpr int kUnroll = kBatch == 1 ? 1 : 16;
  const int left = min(cols_left, 8 * kChunks), rows = min(rows_left, 16);
  const auto before_grid = [](const T* line) { return -tile::off_grid(line) & 7; };
  const auto load_16 = [](uint32_t at) { return *static_cast<const uint4*>(__cvta_shared_to_generic(at)); };
  const auto next_to = [](int chunk) { return min(chunk + 1, kChunks - 1); };
  // opaque() makes the compiler compute what follows from the lane twice, instead of keeping it in registers.
  const auto lane = [lane_id] { return static_cast<int>(ptx::opaque(static_cast<uint32_t>(lane_id))); };
  const int of_chunk = lane(), r0 = of_chunk / kChunks, c = of_chunk % kChunks;
  const uint32_t low_at = chunk_at(r0, c), high_at = chunk_at(r0, next_to(c));
#pragma unroll kUnroll
  for (int i = 0; i < 16; i += kBatch * kRows) {
    uint4 low[kBatch], high[kBatch];
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
      const int r = i + j * kRows;  // low_at is swizzled for row r0; XOR gives the swizzle of row r0 + r
      low[j] = load_16((low_at ^ r % 8 * 16) + r * kLine);
      high[j] = load_16((high_at ^ r % 8 * 16) + r * kLine);
    }
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
      const int r = i + j * kRows + r0;
      T* line = row_at(r);
      const int grid = before_grid(line), at = grid + 8 * c;
      const uint4 x = tile::shifted(low[j], high[j], grid);
      if (r < rows && exists(r) && at + 8 <= left) *reinterpret_cast<uint4*>(line + at) = x;
    }
  }
  const int of_end = lane(), r = of_end % 16;
  T* const line = row_at(r);
  if (left < 8) {
    const auto element = [&](int i) {
      return *static_cast<const T*>(__cvta_shared_to_generic(chunk_at(r, 0) + 2 * i));
    };
    for (int i = lane_id / 16; i < left; i += 2) {
      if (r < rows && exists(r)) line[i] = element(i);
    }
    return;
  }
  const int grid = before_grid(line);
  const bool is_head = of_end < 16;
  const int at = is_head ? 0 : grid + ((left - grid) & ~7),
            count = r < rows && exists(r) ? (is_head ? grid : left - at) : 0;
  const int chunk = min(at / 8, kChunks - 1);
  store_end(line + at, tile::shifted(load_16(chunk_at(r, chunk)), load_16(chunk_at(r, next_to(chunk))), at % 8), count,
            is_head);
}

}  // namespace hgemm::sm90_wgmma
