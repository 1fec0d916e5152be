#include "kernels/batched_mma/launch.cuh"

namespace hgemm::batched_mma {

#define LAUNCHER(NAME, T, ...)                                      \
  Status NAME(const Problem& p, const Schedule& s, Stream stream) { \
    return launch<Config<__VA_ARGS__>, T>(p, s, stream);            \
  }
#define BATCHED_MMA(BM, BN, BK, WM, WN, STAGES, ...)                                                                  \
  LAUNCHER(launch_f16_##BM##x##BN##x##BK##_w##WM##x##WN##_s##STAGES, __half, BM, BN, BK, WM, WN, STAGES, __VA_ARGS__) \
  LAUNCHER(launch_bf16_##BM##x##BN##x##BK##_w##WM##x##WN##_s##STAGES, __nv_bfloat16, BM, BN, BK, WM, WN, STAGES,      \
           __VA_ARGS__)
#ifdef HGEMM_LINE  // the build compiles each line of the list by itself
HGEMM_LINE
#else
#include "kernels/batched_mma/list.inc"
#endif

}  // namespace hgemm::batched_mma
