#include "kernels/sm90_wgmma_launch.cuh"

namespace hgemm::sm90_wgmma {

constexpr Consumers PINGPONG = Consumers::kPingpong, COOPERATIVE = Consumers::kCooperative;

#define SM90_WGMMA(SCHEDULE, BM, BN, STAGES, CM, CN, CK, RATE)                                                     \
  Status launch_bf16_##SCHEDULE##_##BM##x##BN##x64_c##CM##x##CN##x##CK(const Problem& p, const DeviceFacts& facts, \
                                                                       Stream stream) {                            \
    return launch<Config<SCHEDULE, BM, BN, STAGES, CM, CN, CK>, __nv_bfloat16>(p, facts, stream);                  \
  }
#define SM90_WGMMA_SWAPPED(SCHEDULE, BM, BN, STAGES, CM, CN, CK, RATE)                                    \
  Status launch_bf16_swapped_##SCHEDULE##_##BM##x##BN##x64_c##CM##x##CN##x##CK(                           \
      const Problem& p, const DeviceFacts& facts, Stream stream) {                                        \
    return launch_swapped<Config<SCHEDULE, BM, BN, STAGES, CM, CN, CK>, __nv_bfloat16>(p, facts, stream); \
  }
#include "kernels/configs_sm90.inc"

}  // namespace hgemm::sm90_wgmma
