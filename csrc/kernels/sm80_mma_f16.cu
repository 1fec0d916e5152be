#include "kernels/sm80_mma_launch.cuh"

namespace hgemm::sm80_mma {

constexpr Unaligned PAD = Unaligned::kPad, NARROW = Unaligned::kNarrow;

#define SM80_MMA(BM, BN, BK, WM, WN, STAGES, UNALIGNED, SPLIT_K, RATE)                                    \
  Status launch_f16_##BM##x##BN##x##BK##_w##WM##x##WN##_s##STAGES(const Problem& p, Schedule schedule,    \
                                                                  void* workspace, Stream stream) {       \
    return launch<Config<BM, BN, BK, WM, WN, STAGES>, __half, UNALIGNED>(p, schedule, workspace, stream); \
  }
#include "kernels/configs.inc"
#undef SM80_MMA

}  // namespace hgemm::sm80_mma
