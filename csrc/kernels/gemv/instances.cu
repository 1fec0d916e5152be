#include "kernels/gemv/launch.cuh"

namespace hgemm::gemv {

#define LAUNCHER(NAME, T, ...)                                                       \
  Status NAME(const Problem& p, const Schedule& s, void* workspace, Stream stream) { \
    return launch<Config<__VA_ARGS__>, T>(p, s, workspace, stream);                  \
  }
#define GEMV(COLS, DEPTH_K, BLOCKS_K, DEPTH_MN, BLOCKS_MN, SLICE, ...)                     \
  LAUNCHER(launch_f16_##COLS, __half, COLS, DEPTH_K, BLOCKS_K, DEPTH_MN, BLOCKS_MN, SLICE) \
  LAUNCHER(launch_bf16_##COLS, __nv_bfloat16, COLS, DEPTH_K, BLOCKS_K, DEPTH_MN, BLOCKS_MN, SLICE)
#ifdef HGEMM_LINE  // the build compiles each line of the list by itself
HGEMM_LINE
#else
#include "kernels/gemv/list.inc"
#endif

}  // namespace hgemm::gemv
