#include "kernels/simt_skinny/launch.cuh"

namespace hgemm::simt_skinny {

#define SIMT_SKINNY(COLS, STAGES, BLOCKS, ...)                                                \
  Status launch_##COLS(const Problem& p, const Schedule& s, void* workspace, Stream stream) { \
    return launch<Config<COLS, STAGES, BLOCKS>>(p, s, workspace, stream);                     \
  }
#ifdef HGEMM_LINE  // the build compiles each line of the list by itself
HGEMM_LINE
#else
#include "kernels/simt_skinny/list.inc"
#endif

}  // namespace hgemm::simt_skinny
