#include "kernels/sm90_split/launch.cuh"

namespace hgemm::sm90_split {

#define SM90_SPLIT(BN, STAGES, CM, RATE)                                                                 \
  Status launch_128x##BN##x64_c##CM##x1x1(const Problem& p, const DeviceFacts& facts, const Schedule& s, \
                                          void* workspace, Stream stream) {                              \
    return launch<Config<BN, STAGES, CM>>(p, facts, s, workspace, stream);                               \
  }
#ifdef HGEMM_LINE  // the build compiles each line of the list by itself
HGEMM_LINE
#else
#include "kernels/sm90_split/list.inc"
#endif

}  // namespace hgemm::sm90_split
