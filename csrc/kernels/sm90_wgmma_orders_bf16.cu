#include "kernels/sm90_wgmma_launch.cuh"

namespace hgemm::sm90_wgmma {

constexpr Consumers PINGPONG = Consumers::kPingpong, COOPERATIVE = Consumers::kCooperative;

#define SM90_WGMMA_LAUNCHER(NAME, LAUNCH, ...)                                              \
  Status NAME(const Problem& p, const DeviceFacts& facts, void* workspace, Stream stream) { \
    return LAUNCH<__VA_ARGS__, __nv_bfloat16>(p, facts, workspace, stream);                 \
  }
#define SM90_WGMMA_STREAM_K(SCHEDULE, BM, BN, STAGES, CM, CN, RATE)                               \
  SM90_WGMMA_LAUNCHER(launch_bf16_streamk_##SCHEDULE##_##BM##x##BN##x64_c##CM##x##CN##x1, launch, \
                      StreamK<Config<SCHEDULE, BM, BN, STAGES, CM, CN, 1>>)
#define SM90_WGMMA_EDGED(SCHEDULE, BM, BN, STAGES, CM, CN, RATE)                                                \
  SM90_WGMMA_LAUNCHER(launch_bf16_edged_##SCHEDULE##_##BM##x##BN##x64_c##CM##x##CN##x1, launch,                 \
                      Edged<Config<SCHEDULE, BM, BN, STAGES, CM, CN, 1>>)                                       \
  SM90_WGMMA_LAUNCHER(launch_bf16_edged_swapped_##SCHEDULE##_##BM##x##BN##x64_c##CM##x##CN##x1, launch_swapped, \
                      Edged<Config<SCHEDULE, BM, BN, STAGES, CM, CN, 1>>)
#include "kernels/configs_sm90.inc"

}  // namespace hgemm::sm90_wgmma
