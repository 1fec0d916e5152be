#include "kernels/batched_gemv/launch.cuh"

namespace hgemm::batched_gemv {

// The build compiles this file once for each kernel of list.h, with its Config as HGEMM_CONFIG.
template Status launch<HGEMM_CONFIG, DType::kF16>(const Problem&, const Schedule&, Stream);
template Status launch<HGEMM_CONFIG, DType::kBF16>(const Problem&, const Schedule&, Stream);
template Status launch<HGEMM_CONFIG, DType::kF32>(const Problem&, const Schedule&, Stream);

}  // namespace hgemm::batched_gemv
