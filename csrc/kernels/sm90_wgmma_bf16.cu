#include "kernels/sm90_wgmma_launch.cuh"

namespace hgemm::sm90_wgmma {

#define SM90_WGMMA(SCHEDULE, BM, BN, STAGES, CM, CN, CK, RATE)                                              \
  SM90_WGMMA_LAUNCHER(launch_bf16_##SCHEDULE##_##BM##x##BN##x64_c##CM##x##CN##x##CK, launch, __nv_bfloat16, \
                      Config<SCHEDULE, BM, BN, STAGES, CM, CN, CK>)
#define SM90_WGMMA_SWAPPED(SCHEDULE, BM, BN, STAGES, CM, CN, CK, RATE)                                       \
  SM90_WGMMA_LAUNCHER(launch_bf16_swapped_##SCHEDULE##_##BM##x##BN##x64_c##CM##x##CN##x##CK, launch_swapped, \
                      __nv_bfloat16, Config<SCHEDULE, BM, BN, STAGES, CM, CN, CK>)
#include "kernels/configs_sm90.inc"

}  // namespace hgemm::sm90_wgmma
