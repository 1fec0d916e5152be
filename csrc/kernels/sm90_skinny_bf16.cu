#include "kernels/sm90_skinny_launch.cuh"

namespace hgemm::sm90_skinny {

#define SM90_SKINNY(COLS, PANELS, RING, RATE)                                     \
  Status launch_bf16_##COLS(const Problem& p, const Schedule& s, Stream stream) { \
    return launch<Config<COLS, PANELS, RING>, __nv_bfloat16>(p, s, stream);       \
  }
#include "kernels/configs_sm90_skinny.inc"
#undef SM90_SKINNY

}  // namespace hgemm::sm90_skinny
