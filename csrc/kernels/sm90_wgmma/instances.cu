#include "kernels/sm90_wgmma/launch.cuh"

namespace hgemm::sm90_wgmma {

#define LAUNCHER(NAME, LAUNCH, T, ...)                                                      \
  Status NAME(const Problem& p, const DeviceFacts& facts, void* workspace, Stream stream) { \
    return LAUNCH<__VA_ARGS__, T>(p, facts, workspace, stream);                             \
  }
#define LAUNCHERS(ID, LAUNCH, ...)                       \
  LAUNCHER(launch_f16_##ID, LAUNCH, __half, __VA_ARGS__) \
  LAUNCHER(launch_bf16_##ID, LAUNCH, __nv_bfloat16, __VA_ARGS__)

#define SM90_WGMMA(SCHEDULE, BM, BN, STAGES, CM, CN, CK, RATE) \
  LAUNCHERS(SCHEDULE##_##BM##x##BN##x64_c##CM##x##CN##x##CK, launch, Config<SCHEDULE, BM, BN, STAGES, CM, CN, CK>)
#define SM90_WGMMA_SWAPPED(SCHEDULE, BM, BN, STAGES, CM, CN, CK, RATE)                 \
  LAUNCHERS(swapped_##SCHEDULE##_##BM##x##BN##x64_c##CM##x##CN##x##CK, launch_swapped, \
            Config<SCHEDULE, BM, BN, STAGES, CM, CN, CK, true>)
#define SM90_WGMMA_STREAM_K(SCHEDULE, BM, BN, STAGES, CM, CN, RATE)         \
  LAUNCHERS(streamk_##SCHEDULE##_##BM##x##BN##x64_c##CM##x##CN##x1, launch, \
            StreamK<Config<SCHEDULE, BM, BN, STAGES, CM, CN, 1>>)
#define SM90_WGMMA_EDGED(SCHEDULE, BM, BN, STAGES, CM, CN, RATE)                          \
  LAUNCHERS(edged_##SCHEDULE##_##BM##x##BN##x64_c##CM##x##CN##x1, launch,                 \
            Edged<Config<SCHEDULE, BM, BN, STAGES, CM, CN, 1>>)                           \
  LAUNCHERS(edged_swapped_##SCHEDULE##_##BM##x##BN##x64_c##CM##x##CN##x1, launch_swapped, \
            Edged<Config<SCHEDULE, BM, BN, STAGES, CM, CN, 1>>)
#ifdef HGEMM_LINE  // the build compiles each line of the list by itself
HGEMM_LINE
#else
#include "kernels/sm90_wgmma/list.inc"
#endif

}  // namespace hgemm::sm90_wgmma
