#include <tuple>

#include "kernels/sm90_wgmma/int8_launch.cuh"
#include "kernels/sm90_wgmma/int8_list.h"

namespace hgemm::sm90_wgmma {
namespace {

template <class... Kernels>
Status launch_at(int index, const std::tuple<Kernels...>&, [[maybe_unused]] const Problem& pairs,
                 [[maybe_unused]] const DeviceFacts& facts, [[maybe_unused]] cudaStream_t stream) {
  Status status = cudaErrorNoKernelImageForDevice;
#ifndef HGEMM_NO_SM90A
  int i = 0;
  ((i++ == index ? void(status = launch_int8<typename Kernels::Config>(pairs, facts, stream)) : void()), ...);
#endif
  return status;
}

}  // namespace

Status launch_int8(int index, const Problem& pairs, const DeviceFacts& facts, Stream stream) {
  return launch_at(index, int8::kKernels, pairs, facts, static_cast<cudaStream_t>(stream));
}

}  // namespace hgemm::sm90_wgmma
