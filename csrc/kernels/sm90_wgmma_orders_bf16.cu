#include "kernels/sm90_wgmma_launch.cuh"

namespace hgemm::sm90_wgmma {

constexpr Consumers PINGPONG = Consumers::kPingpong, COOPERATIVE = Consumers::kCooperative;

#define SM90_WGMMA_STREAM_K(SCHEDULE, BM, BN, STAGES, CM, CN, RATE)                 \
  Status launch_bf16_streamk_##SCHEDULE##_##BM##x##BN##x64_c##CM##x##CN##x1(        \
      const Problem& p, const DeviceFacts& facts, void* workspace, Stream stream) { \
    using C = StreamK<Config<SCHEDULE, BM, BN, STAGES, CM, CN, 1>>;                 \
    return launch_stream_k<C, __nv_bfloat16>(p, facts, workspace, stream);          \
  }
#define SM90_WGMMA_EDGED(SCHEDULE, BM, BN, STAGES, CM, CN, RATE)                                                      \
  Status launch_bf16_edged_##SCHEDULE##_##BM##x##BN##x64_c##CM##x##CN##x1(const Problem& p, const DeviceFacts& facts, \
                                                                          Stream stream) {                            \
    return launch_edged<Edged<Config<SCHEDULE, BM, BN, STAGES, CM, CN, 1>>, __nv_bfloat16>(p, facts, stream);         \
  }                                                                                                                   \
  Status launch_bf16_edged_swapped_##SCHEDULE##_##BM##x##BN##x64_c##CM##x##CN##x1(                                    \
      const Problem& p, const DeviceFacts& facts, Stream stream) {                                                    \
    return launch_edged_swapped<Edged<Config<SCHEDULE, BM, BN, STAGES, CM, CN, 1>>, __nv_bfloat16>(p, facts, stream); \
  }
#include "kernels/configs_sm90.inc"

}  // namespace hgemm::sm90_wgmma
