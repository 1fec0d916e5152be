#include "kernels/simt_gemv/launch.cuh"

namespace hgemm::simt_gemv {

// The build compiles this file once for each kernel of list.h, with its Config as HGEMM_CONFIG.
template Status launch<HGEMM_CONFIG>(const Problem&, const Schedule&, void*, Stream);

}  // namespace hgemm::simt_gemv
