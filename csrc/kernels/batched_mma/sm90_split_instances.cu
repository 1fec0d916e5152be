#include "kernels/batched_mma/sm90_split_launch.cuh"

namespace hgemm::batched_split {

// The build compiles this file once for each kernel of sm90_split_list.h, with its Config as HGEMM_CONFIG.
template Status launch<HGEMM_CONFIG>(const Problem&, const Schedule&, Stream);

}  // namespace hgemm::batched_split
