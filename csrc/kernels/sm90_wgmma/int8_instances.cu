#include "kernels/sm90_wgmma/int8_launch.cuh"

namespace hgemm::sm90_wgmma {

// The build compiles this file with each Config of int8_list.h as HGEMM_CONFIG.
template Status launch_int8<HGEMM_CONFIG>(const Problem&, const DeviceFacts&, Stream);

}  // namespace hgemm::sm90_wgmma
