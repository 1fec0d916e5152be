#include "kernels/sm90_wgmma_launch.cuh"

namespace hgemm::sm90_wgmma {

constexpr Consumers PINGPONG = Consumers::kPingpong, COOPERATIVE = Consumers::kCooperative;

#define SM90_WGMMA_LAUNCHER(NAME, LAUNCH, ...)                                              \
  Status NAME(const Problem& p, const DeviceFacts& facts, void* workspace, Stream stream) { \
    return LAUNCH<__VA_ARGS__, __half>(p, facts, workspace, stream);                        \
  }
#define SM90_WGMMA(SCHEDULE, BM, BN, STAGES, CM, CN, CK, RATE)                              \
  SM90_WGMMA_LAUNCHER(launch_f16_##SCHEDULE##_##BM##x##BN##x64_c##CM##x##CN##x##CK, launch, \
                      Config<SCHEDULE, BM, BN, STAGES, CM, CN, CK>)
#define SM90_WGMMA_SWAPPED(SCHEDULE, BM, BN, STAGES, CM, CN, CK, RATE)                                      \
  SM90_WGMMA_LAUNCHER(launch_f16_swapped_##SCHEDULE##_##BM##x##BN##x64_c##CM##x##CN##x##CK, launch_swapped, \
                      Config<SCHEDULE, BM, BN, STAGES, CM, CN, CK>)
#include "kernels/configs_sm90.inc"

}  // namespace hgemm::sm90_wgmma
