#include "kernels/sm80_mma/launch.cuh"

namespace hgemm::sm80_mma {

// The build compiles this file once for each kernel of list.h, with its Config as HGEMM_CONFIG.
template Status launch<HGEMM_CONFIG, DType::kF16>(const Problem&, Schedule, void*, Stream);
template Status launch<HGEMM_CONFIG, DType::kBF16>(const Problem&, Schedule, void*, Stream);

}  // namespace hgemm::sm80_mma
