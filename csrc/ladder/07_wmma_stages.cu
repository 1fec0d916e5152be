// Copies run under the math: cp.async fills a ring of buffers ahead of the tile being multiplied (stages.cuh).
// Changes: dbuf and stage2 have two buffers; stage3 and stage4 keep two and three tiles in flight. rbuf also loads the
// fragments of the next k16 step early. dsmem takes dynamic shared memory, which may exceed 48 KB, as 256x256 tiles
// need. swizzle walks D in column panels, so that blocks that run at the same time share A and B in L2. m32n8k16 takes
// fragments of that shape instead of m16n16k16.
// Expected (as published for other GPUs): dbuf is 1.1 times as fast as the single buffer, deeper rings are the same
// within 1 %, and swizzle is worth a factor of 1.055 (1.2 where A and B exceed L2).
// Source: CUDA C++ Programming Guide, "Asynchronous Data Copies"; CUTLASS, "Efficient GEMM in CUDA".
#include "ladder/ladder.h"
#include "ladder/stages.cuh"
#include "ladder/wmma_warp.cuh"

namespace hgemm::ladder {
namespace {

template <class Line, int FRAGMENT_BUFFERS>
struct WmmaStages : Traits<Line> {
  using Base = Traits<Line>;
  using Warp = WmmaWarp<Base, FRAGMENT_BUFFERS>;
  static_assert(Line::SMEM == Base::kRingBytes && Base::kThreads / 32 * Warp::kScratchBytes <= Line::SMEM);
};

}  // namespace

#define WMMA_STAGES_(FRAGMENT_BUFFERS, NAME, ...)                                                              \
  TENSOR_CORE_LINE(NAME, __VA_ARGS__);                                                                         \
  Status launch_##NAME(const StepProblem& p, Stream stream) {                                                  \
    using T = WmmaStages<Line_##NAME, FRAGMENT_BUFFERS>;                                                       \
    return launch_body<T>(stages<T, Fetch::kAsync>, stages<T, Fetch::kElements>, kSwizzles_##NAME, p, stream); \
  }
#define WMMA_STAGES(...) WMMA_STAGES_(1, __VA_ARGS__)
#define WMMA_STAGES_RBUF(...) WMMA_STAGES_(2, __VA_ARGS__)
#include "ladder/variants.inc"

}  // namespace hgemm::ladder
