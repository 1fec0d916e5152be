#include "kernels/sm80_mma/launch.cuh"

namespace hgemm::sm80_mma {

[[maybe_unused]] constexpr Unaligned PAD = Unaligned::kPad, NARROW = Unaligned::kNarrow;

#define LAUNCHER(NAME, T, UNALIGNED, ...)                                             \
  Status NAME(const Problem& p, Schedule schedule, void* workspace, Stream stream) {  \
    return launch<Config<__VA_ARGS__>, T, UNALIGNED>(p, schedule, workspace, stream); \
  }
#define SM80_MMA(BM, BN, BK, WM, WN, STAGES, UNALIGNED, SPLIT_K, RATE)                                              \
  LAUNCHER(launch_f16_##BM##x##BN##x##BK##_w##WM##x##WN##_s##STAGES, __half, UNALIGNED, BM, BN, BK, WM, WN, STAGES) \
  LAUNCHER(launch_bf16_##BM##x##BN##x##BK##_w##WM##x##WN##_s##STAGES, __nv_bfloat16, UNALIGNED, BM, BN, BK, WM, WN, \
           STAGES)
#ifdef HGEMM_LINE  // the build compiles each line of the list by itself
HGEMM_LINE
#else
#include "kernels/sm80_mma/list.inc"
#endif

}  // namespace hgemm::sm80_mma
