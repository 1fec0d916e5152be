#include <tuple>

#include "kernels/sm90_wgmma/grouped_launch.cuh"
#include "kernels/sm90_wgmma/grouped_list.h"
#include "kernels/variants.h"

namespace hgemm {
namespace sm90_wgmma {
namespace {

template <class... Kernels>
Status launch_at(int index, const std::tuple<Kernels...>&, [[maybe_unused]] const GroupedProduct& grouped,
                 [[maybe_unused]] const DeviceFacts& facts, [[maybe_unused]] cudaStream_t stream) {
  Status status = cudaErrorNoKernelImageForDevice;
#ifndef HGEMM_NO_SM90A
  const auto launch = [&](auto kernel) {
    using Config = typename decltype(kernel)::Config;
    status = grouped.product.dtype == DType::kF16 ? launch_grouped<Config, DType::kF16>(grouped, facts, stream)
                                                  : launch_grouped<Config, DType::kBF16>(grouped, facts, stream);
  };
  int i = 0;
  ((i++ == index ? launch(Kernels()) : void()), ...);
#endif
  return status;
}

}  // namespace
}  // namespace sm90_wgmma

Status launch_sm90_grouped(int index, const GroupedProduct& grouped, const DeviceFacts& facts, Stream stream) {
  return sm90_wgmma::launch_at(index, sm90_wgmma::grouped::kKernels, grouped, facts, static_cast<cudaStream_t>(stream));
}

}  // namespace hgemm
