#include "kernels/gemv/launch.cuh"

namespace hgemm::gemv {

// The build compiles this file once for each kernel of list.h, with its Config as HGEMM_CONFIG.
template Status launch<HGEMM_CONFIG, DType::kF16>(const Problem&, const Schedule&, void*, Stream);
template Status launch<HGEMM_CONFIG, DType::kBF16>(const Problem&, const Schedule&, void*, Stream);

}  // namespace hgemm::gemv
