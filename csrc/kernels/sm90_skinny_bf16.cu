#include "kernels/sm90_skinny_launch.cuh"

namespace hgemm::sm90_skinny {

#define SM90_SKINNY(ROWS, COLS, PANELS, RING, RATE)                                        \
  Status launch_bf16_##ROWS##x##COLS(const Problem& p, const Schedule& s, Stream stream) { \
    return launch<Config<ROWS, COLS, PANELS, RING>, __nv_bfloat16>(p, s, stream);          \
  }
#include "kernels/configs_sm90_skinny.inc"
#undef SM90_SKINNY

}  // namespace hgemm::sm90_skinny
