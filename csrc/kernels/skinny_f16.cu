#include "kernels/skinny_launch.cuh"

namespace hgemm::skinny {

#define SKINNY(COLS, WARPS, DEPTH_K, DEPTH_MN, ...)                              \
  Status launch_f16_##COLS(const Problem& p, const Schedule& s, Stream stream) { \
    return launch<Config<COLS, WARPS, DEPTH_K, DEPTH_MN>, __half>(p, s, stream); \
  }
#include "kernels/configs_skinny.inc"
#undef SKINNY

}  // namespace hgemm::skinny
