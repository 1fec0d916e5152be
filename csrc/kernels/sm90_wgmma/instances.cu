#include "kernels/sm90_wgmma/launch.cuh"

namespace hgemm::sm90_wgmma {

// The build compiles this file once for each kernel of list.h, with its Config as HGEMM_CONFIG.
template Status launch<HGEMM_CONFIG, DType::kF16>(const Problem&, const DeviceFacts&, void*, Stream);
template Status launch<HGEMM_CONFIG, DType::kBF16>(const Problem&, const DeviceFacts&, void*, Stream);

}  // namespace hgemm::sm90_wgmma
