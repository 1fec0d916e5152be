// The warps of a block share tiles: WARPS_M x WARPS_N warps stage (BM, BK) of A and (BK, BN) of B in shared memory, and
// each warp keeps several fragments of D in registers.
// Changes: mma4x2 shares tiles between 8 warps. warp2x4 uses every loaded fragment four or two times. async copies by
// cp.async, which bypasses registers. x2 takes two k16 steps per barrier. offset pads rows against bank conflicts.
// Expected (as published for other GPUs): mma4x2 is 2.3 times as fast as naive, warp tiles are 1.8 times as fast as
// mma4x2, padding is worth a factor of 1.14 to 1.2, and async 1.07. On the H200 padding is worth 2.5: without it 80 %
// of the shared-memory wavefronts are replays.
// Source: CUDA C++ Programming Guide, "Warp Matrix Functions"; NVIDIA's cudaTensorCoreGemm sample pads the same way.
#include "ladder/ladder.h"
#include "ladder/single_buffer.cuh"
#include "ladder/wmma_warp.cuh"

namespace hgemm::ladder {
namespace {

template <class Line>
struct WmmaTiles : Traits<Line> {
  using Base = Traits<Line>;
  using Warp = WmmaWarp<Base, 1>;
  static_assert(Line::SMEM == std::max(Base::kRingBytes, Base::kThreads / 32 * Warp::kScratchBytes));
};

}  // namespace

#define WMMA_TILES_(FETCH, NAME, ...)                                                                                 \
  TENSOR_CORE_LINE(NAME, __VA_ARGS__);                                                                                \
  Status launch_##NAME(const StepProblem& p, Stream stream) {                                                         \
    using T = WmmaTiles<Line_##NAME>;                                                                                 \
    return launch_body<T>(single_buffer<T, Fetch::k##FETCH>, single_buffer<T, Fetch::kElements>, kSwizzles_##NAME, p, \
                          stream);                                                                                    \
  }
#define WMMA_TILES_ASYNC(...) WMMA_TILES_(Async, __VA_ARGS__)
#define WMMA_TILES_SYNC(...) WMMA_TILES_(Registers, __VA_ARGS__)
#include "ladder/variants.inc"

}  // namespace hgemm::ladder
