// The multiplication of an int8 W whose rows, not whose k, are contiguous.
#pragma once

#include <cstdint>

#include "kernels/sm90_skinny/traits.cuh"
#include "ptx/shared.cuh"
#include "ptx/wgmma.cuh"
#include "tile/transpose_bytes.cuh"

namespace hgemm::sm90_skinny {

/// Starts the wgmma of a stage, in two groups: `w` and `x` are the warpgroup's parts of W and x in shared memory. A
/// lane has a word of each of four adjacent k, and transposes them to four k of each of four rows. The warp's rows 4 r
/// + i, for r = l / 4 of lane l, are row r of part i / 2, and the row eight below it for odd i.
///
/// A group reads its registers until it has ended. Each half of the stage has registers of its own, so that one group
/// can be in flight while the other half is loaded.
template <class Traits>
__device__ __forceinline__ void multiply_transposed(int32_t (&acc)[2][Traits::kWarpCols / 2], uint32_t w, uint32_t x,
                                                    bool keep) {
  using Stage = Stage<Traits>;
  static_assert(Traits::PANELS == 1);
  constexpr int kSteps = 4, kStepK = 32;
  const int lane = threadIdx.x % 32, word = threadIdx.x / 32 % 4 * 8 + lane / 4;
  const uint32_t first = w + lane % 4 * 4 * Stage::kLine + word % 4 * 4;
  const uint64_t panel_of_x = ptx::wgmma_descriptor<Stage::kLineX>(x, 0, 8 * Stage::kLineX);
  uint32_t a[kSteps][2][4];  // of each part
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    if (step % 2 == 0) ptx::wgmma_wait<1>();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      uint32_t words[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int swizzled = word / 4 ^ (lane % 2 * 4 + i);
        words[i] = ptx::ld_shared_4(first + (step * kStepK + half * 16 + i) * Stage::kLine + swizzled * 16);
      }
      tile::transpose_bytes(words);
#pragma unroll
      for (int i = 0; i < 4; ++i) a[step][i / 2][half * 2 + i % 2] = words[i];
    }
    if (step % 2 == 0) continue;
    ptx::wgmma_fence();
#pragma unroll
    for (int s = step - 1; s <= step; ++s) {
#pragma unroll
      for (int part = 0; part < 2; ++part) {
        ptx::Wgmma<ptx::Int8Pair>::m64k16_a<Traits::kWarpCols>(
            acc[part], a[s][part], ptx::wgmma_advance(panel_of_x, s * Stage::kStepBytesX), keep || s > 0);
      }
    }
    ptx::wgmma_commit();
  }
}

}  // namespace hgemm::sm90_skinny
