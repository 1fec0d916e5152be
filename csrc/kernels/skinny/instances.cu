#include "kernels/skinny/launch.cuh"

namespace hgemm::skinny {

#define LAUNCHER(NAME, T, ...)                                      \
  Status NAME(const Problem& p, const Schedule& s, Stream stream) { \
    return launch<Config<__VA_ARGS__>, T>(p, s, stream);            \
  }
#define SKINNY(COLS, WARPS, DEPTH_K, DEPTH_MN, ...)                   \
  LAUNCHER(launch_f16_##COLS, __half, COLS, WARPS, DEPTH_K, DEPTH_MN) \
  LAUNCHER(launch_bf16_##COLS, __nv_bfloat16, COLS, WARPS, DEPTH_K, DEPTH_MN)
#ifdef HGEMM_LINE  // the build compiles each line of the list by itself
HGEMM_LINE
#else
#include "kernels/skinny/list.inc"
#endif

}  // namespace hgemm::skinny
