#include "kernels/batched_mma_launch.cuh"

namespace hgemm::batched_mma {

#define BATCHED_MMA(BM, BN, BK, WM, WN, STAGES, PROBLEMS, RESIDENT)                                     \
  Status launch_bf16_##BM##x##BN##x##BK##_w##WM##x##WN##_s##STAGES(const Problem& p, const Schedule& s, \
                                                                   Stream stream) {                     \
    return launch<Config<BM, BN, BK, WM, WN, STAGES, PROBLEMS, RESIDENT>, __nv_bfloat16>(p, s, stream); \
  }
#include "kernels/configs_batched.inc"
#undef BATCHED_MMA

}  // namespace hgemm::batched_mma
