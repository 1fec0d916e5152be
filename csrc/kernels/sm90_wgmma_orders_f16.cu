#include "kernels/sm90_wgmma_launch.cuh"

namespace hgemm::sm90_wgmma {

#define SM90_WGMMA_STREAM_K(SCHEDULE, BM, BN, STAGES, CM, CN, RATE)                                      \
  SM90_WGMMA_LAUNCHER(launch_f16_streamk_##SCHEDULE##_##BM##x##BN##x64_c##CM##x##CN##x1, launch, __half, \
                      StreamK<Config<SCHEDULE, BM, BN, STAGES, CM, CN, 1>>)
#define SM90_WGMMA_EDGED(SCHEDULE, BM, BN, STAGES, CM, CN, RATE)                                                       \
  SM90_WGMMA_LAUNCHER(launch_f16_edged_##SCHEDULE##_##BM##x##BN##x64_c##CM##x##CN##x1, launch, __half,                 \
                      Edged<Config<SCHEDULE, BM, BN, STAGES, CM, CN, 1>>)                                              \
  SM90_WGMMA_LAUNCHER(launch_f16_edged_swapped_##SCHEDULE##_##BM##x##BN##x64_c##CM##x##CN##x1, launch_swapped, __half, \
                      Edged<Config<SCHEDULE, BM, BN, STAGES, CM, CN, 1>>)
#include "kernels/configs_sm90.inc"

}  // namespace hgemm::sm90_wgmma
