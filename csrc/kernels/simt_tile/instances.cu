#include "kernels/simt_tile/launch.cuh"

namespace hgemm::simt_tile {

// The build compiles this file once for each kernel of list.h, with its Config as HGEMM_CONFIG.
template Status launch<HGEMM_CONFIG>(const Problem&, const Schedule&, void*, Stream);

}  // namespace hgemm::simt_tile
