#include "kernels/tiny_batch/launch.cuh"

namespace hgemm::tiny_batch {

// The build compiles this file once for each kernel of list.h, with its Config as HGEMM_CONFIG.
template Status launch<HGEMM_CONFIG, DType::kF16>(const Problem&, const Schedule&, Stream);
template Status launch<HGEMM_CONFIG, DType::kBF16>(const Problem&, const Schedule&, Stream);
template Status launch<HGEMM_CONFIG, DType::kF32>(const Problem&, const Schedule&, Stream);
template Status launch<HGEMM_CONFIG, DType::kF64>(const Problem&, const Schedule&, Stream);
template Status launch<HGEMM_CONFIG, DType::kC64>(const Problem&, const Schedule&, Stream);

}  // namespace hgemm::tiny_batch
