#include "kernels/sm80_split/launch.cuh"

namespace hgemm::sm80_split {

// The build compiles this file once for each kernel of list.h, with its Config as HGEMM_CONFIG.
template Status launch<HGEMM_CONFIG>(const Problem&, const DeviceFacts&, const tile::split::Memory&, Stream);

}  // namespace hgemm::sm80_split
