// Chunks of W in registers. A thread loads kLoads (four) aligned chunks of 16 bytes together.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "kernels/gemv/config.h"
#include "ptx/global.cuh"

namespace hgemm::gemv {

/// Converts two 16-bit elements of the second argument's type to float32.
__device__ __forceinline__ float2 unpack(uint32_t pair, __half) {
  return __half22float2(*reinterpret_cast<const __half2*>(&pair));
}
__device__ __forceinline__ float2 unpack(uint32_t pair, __nv_bfloat16) {
  return make_float2(__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u));
}

using Chunks = uint4[kLoads];

/// Loads word Q of each chunk, which holds elements 2 Q and 2 Q + 1, if one of these is in lo..hi-1. Of the elements
/// outside that range only the one right before lo may be read. It is in the same allocation, because allocations start
/// on whole words. They need not end on whole words.
template <int Q>
__device__ __forceinline__ void load_words(Chunks& to, const uint16_t* from, int64_t stride, int left, int apart,
                                           int lo, int hi) {
  constexpr int kFirst = 2 * Q;
  if (lo > kFirst + 1 || hi <= kFirst) return;
#pragma unroll
  for (int i = 0; i < kLoads; ++i) {
    if (i * apart >= left) break;
    const uint16_t* const at = from + i * stride + kFirst;
    (Q == 0   ? to[i].x
     : Q == 1 ? to[i].y
     : Q == 2 ? to[i].z
              : to[i].w) = hi == kFirst + 1 ? ptx::ld_2(at) : ptx::ld_4(at);
  }
}

/// Loads chunks that are `stride` elements apart. Chunk i is loaded only if i * apart < left, and zero otherwise. Only
/// elements lo..hi-1 of a chunk are valid; the others may be anything. `ends`: the memory of the others may not exist,
/// so only valid elements are read.
template <bool kNarrow>
__device__ __forceinline__ void load(Chunks& to, const uint16_t* from, int64_t stride, int left, int apart, bool ends,
                                     int lo, int hi) {
#pragma unroll
  for (int i = 0; i < kLoads; ++i) to[i] = make_uint4(0, 0, 0, 0);
  if (kNarrow && ends && (lo > 0 || hi < 8)) {
    load_words<0>(to, from, stride, left, apart, lo, hi);
    load_words<1>(to, from, stride, left, apart, lo, hi);
    load_words<2>(to, from, stride, left, apart, lo, hi);
    load_words<3>(to, from, stride, left, apart, lo, hi);
  } else {
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      if (i * apart < left) to[i] = ptx::ld_once_16(from + i * stride);
    }
  }
}

/// Sets all elements of the chunks except lo..hi-1 to zero. What lies next to a row of W may be NaN or infinite, and
/// multiplying it by the zeros of x would give NaN.
__device__ __forceinline__ void clear_around(Chunks& chunks, int lo, int hi) {
  if (lo <= 0 && hi >= 8) return;
  uint32_t mask[4];
#pragma unroll
  for (int q = 0; q < 4; ++q) {
    mask[q] = (lo <= 2 * q && 2 * q < hi ? 0xffffu : 0u) | (lo <= 2 * q + 1 && 2 * q + 1 < hi ? 0xffff0000u : 0u);
  }
#pragma unroll
  for (uint4& chunk : chunks) {
    chunk = make_uint4(chunk.x & mask[0], chunk.y & mask[1], chunk.z & mask[2], chunk.w & mask[3]);
  }
}

}  // namespace hgemm::gemv
