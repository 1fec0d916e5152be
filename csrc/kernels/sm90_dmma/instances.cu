#include "kernels/sm90_dmma/launch.cuh"

namespace hgemm::sm90_dmma {

// The build compiles this file once for each kernel of list.h, with its Config as HGEMM_CONFIG.
template Status launch<HGEMM_CONFIG>(const Problem&, const Schedule&, void*, Stream);

}  // namespace hgemm::sm90_dmma
