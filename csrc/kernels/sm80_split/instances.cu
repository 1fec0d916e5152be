#include "kernels/sm80_split/launch.cuh"

namespace hgemm::sm80_split {

#define SM80_SPLIT(BM, BN, STAGES, RATE)                                                       \
  Status launch_##BM##x##BN##x32_s##STAGES(const Problem& p, void* workspace, Stream stream) { \
    return launch<Config<BM, BN, STAGES>>(p, workspace, stream);                               \
  }
#ifdef HGEMM_LINE  // the build compiles each line of the list by itself
HGEMM_LINE
#else
#include "kernels/sm80_split/list.inc"
#endif

}  // namespace hgemm::sm80_split
