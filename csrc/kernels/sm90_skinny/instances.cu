#include "kernels/sm90_skinny/launch.cuh"

namespace hgemm::sm90_skinny {

#define LAUNCHER(NAME, T, ...)                                      \
  Status NAME(const Problem& p, const Schedule& s, Stream stream) { \
    return launch<Config<__VA_ARGS__>, T>(p, s, stream);            \
  }
#define SM90_SKINNY(ROWS, COLS, PANELS, RING, RATE)                      \
  LAUNCHER(launch_f16_##ROWS##x##COLS, __half, ROWS, COLS, PANELS, RING) \
  LAUNCHER(launch_bf16_##ROWS##x##COLS, __nv_bfloat16, ROWS, COLS, PANELS, RING)
#ifdef HGEMM_LINE  // the build compiles each line of the list by itself
HGEMM_LINE
#else
#include "kernels/sm90_skinny/list.inc"
#endif

}  // namespace hgemm::sm90_skinny
