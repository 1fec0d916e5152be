#include <tuple>

#include "kernels/sm90_skinny/int8_list.h"
#include "kernels/sm90_skinny/launch.cuh"

namespace hgemm::sm90_skinny {
namespace {

template <class... Configs>
Status launch_at(int index, const std::tuple<Kernel<Configs>...>&, [[maybe_unused]] const Problem& pairs,
                 [[maybe_unused]] const Schedule& s, [[maybe_unused]] cudaStream_t stream) {
  Status status = cudaErrorNoKernelImageForDevice;
#ifndef HGEMM_NO_SM90A
  int i = 0;
  ((i++ == index ? void(status = launch_int8<Configs>(pairs, s, stream)) : void()), ...);
#endif
  return status;
}

}  // namespace

Status launch_int8(int index, const Problem& pairs, const Schedule& s, Stream stream) {
  return launch_at(index, int8::kKernels, pairs, s, static_cast<cudaStream_t>(stream));
}

}  // namespace hgemm::sm90_skinny
