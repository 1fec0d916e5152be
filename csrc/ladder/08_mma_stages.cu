// The loops of 06_wmma_tiles and 07_wmma_stages with mma.sync and ldmatrix inside.
// Changes: mma2x4_warp4x4 has one buffer of (128, 128, 16); stage2 to stage4 have a ring as before. x2 takes 32 k per
// tile. xor swizzles shared memory instead of padding it, which the fixed row stride of WMMA does not allow. swizzle
// walks D in panels. coalesced writes D through shared memory in 16-byte stores. f32acc accumulates in float32, with
// twice the accumulator registers.
// Expected: WMMA's speed at equal tiles, since the instruction is the same. xor saves the space of the padding, and
// copies get cheaper: rows padded by 16 bytes leave the grid of 32-byte sectors, and cp.async asks L2 for half of the
// sectors twice.
// Source: PTX ISA, "ldmatrix", "mma"; CUTLASS, "Efficient GEMM in CUDA".
#include "ladder/ladder.h"
#include "ladder/mma_warp.cuh"
#include "ladder/single_buffer.cuh"
#include "ladder/stages.cuh"

namespace hgemm::ladder {
namespace {

template <class Line, Epilogue kEpilogue>
struct MmaStages : Traits<Line> {
  using Base = Traits<Line>;
  using Warp = MmaWarp<Base, kEpilogue>;
  static_assert(Line::SMEM == Base::kRingBytes && Base::kThreads / 32 * Warp::kScratchBytes <= Line::SMEM);
};

}  // namespace

#define MMA_LOOP_(BODY, EPILOGUE, NAME, ...)                                                               \
  TENSOR_CORE_LINE(NAME, __VA_ARGS__);                                                                     \
  Status launch_##NAME(const StepProblem& p, Stream stream) {                                              \
    using T = MmaStages<Line_##NAME, Epilogue::EPILOGUE>;                                                  \
    return launch_body<T>(BODY<T, Fetch::kAsync>, BODY<T, Fetch::kElements>, kSwizzles_##NAME, p, stream); \
  }
#define MMA_TILES(...) MMA_LOOP_(single_buffer, kDirect, __VA_ARGS__)
#define MMA_STAGES(...) MMA_LOOP_(stages, kDirect, __VA_ARGS__)
#define MMA_STAGES_COALESCED(...) MMA_LOOP_(stages, kCoalesced, __VA_ARGS__)
#include "ladder/variants.inc"

}  // namespace hgemm::ladder
