#include "kernels/simt_gemv/launch.cuh"

namespace hgemm::simt_gemv {

#define SIMT_GEMV(COLS, DEPTH, ...)                                                           \
  Status launch_##COLS(const Problem& p, const Schedule& s, void* workspace, Stream stream) { \
    return launch<Config<COLS, DEPTH>>(p, s, workspace, stream);                              \
  }
#ifdef HGEMM_LINE  // the build compiles each line of the list by itself
HGEMM_LINE
#else
#include "kernels/simt_gemv/list.inc"
#endif

}  // namespace hgemm::simt_gemv
