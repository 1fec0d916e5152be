#include "kernels/sm90_skinny/launch.cuh"

namespace hgemm::sm90_skinny {

// The build compiles this file with each Config of int8_list.h as HGEMM_CONFIG.
template Status launch_int8<HGEMM_CONFIG>(const Problem&, const Schedule&, Stream);

}  // namespace hgemm::sm90_skinny
