#include "kernels/gemv_launch.cuh"

namespace hgemm::gemv {

#define GEMV(COLS, DEPTH_K, BLOCKS_K, DEPTH_MN, BLOCKS_MN, SLICE, RATE_K, RATE_MN)                             \
  Status launch_bf16_##COLS(const Problem& p, const Schedule& s, void* workspace, Stream stream) {             \
    return launch<Config<COLS, DEPTH_K, BLOCKS_K, DEPTH_MN, BLOCKS_MN, SLICE>, __nv_bfloat16>(p, s, workspace, \
                                                                                              stream);         \
  }
#include "kernels/configs_gemv.inc"
#undef GEMV

}  // namespace hgemm::gemv
