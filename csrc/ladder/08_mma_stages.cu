// The loops of 06_wmma_tiles and 07_wmma_stages with mma.sync and ldmatrix inside.
// Changes: mma2x4_warp4x4 is one buffer of (128, 128, 16), then stages as before; x2 takes 32 k a tile; xor swizzles
// shared memory instead of padding it, which WMMA's fixed row stride forbids; swizzle walks D in panels; coalesced
// sends D through shared memory in 16-byte stores; f32acc sums in fp32, at twice the registers.
// Expected: WMMA's speed at equal tiles (it is the same instruction). xor saves the padding's space, and copies: rows
// padded by 16 bytes leave the grid of 32-byte sectors, and cp.async asks L2 for half of them twice.
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

#define MMA_LOOP_(BODY, EPILOGUE, NAME, ...)                                             \
  TENSOR_CORE_LINE(NAME, __VA_ARGS__);                                                   \
  Status launch_##NAME(const StepProblem& p, Stream stream) {                            \
    using T = MmaStages<Line_##NAME, Epilogue::EPILOGUE>;                                \
    return launch_body<T>(BODY<T, Fetch::kAsync>, BODY<T, Fetch::kElements>, p, stream); \
  }
#define MMA_TILES(...) MMA_LOOP_(single_buffer, kDirect, __VA_ARGS__)
#define MMA_STAGES(...) MMA_LOOP_(stages, kDirect, __VA_ARGS__)
#define MMA_STAGES_COALESCED(...) MMA_LOOP_(stages, kCoalesced, __VA_ARGS__)
#include "ladder/variants.inc"

}  // namespace hgemm::ladder
