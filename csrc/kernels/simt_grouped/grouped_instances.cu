#include <cuda_runtime.h>

#include <atomic>
#include <tuple>

#include "core/launch.cuh"
#include "kernels/simt_grouped/grouped_list.h"
#include "kernels/simt_grouped/kernel.cuh"
#include "kernels/variants.h"

namespace hgemm {
namespace simt_grouped {
namespace {

template <class Config, bool kWide>
cudaError_t launch(const GroupedProduct& grouped, cudaStream_t stream) {
  static std::atomic<uint64_t> smem_allowed{0};
  if (const cudaError_t e = allow_smem(kernel<Config, kWide>, Config::kSmemBytes, smem_allowed)) return e;
  const int64_t blocks = tile::most_group_tiles(grouped, Config::BM, Config::BN);
  return enqueue(kernel<Config, kWide>, static_cast<unsigned>(blocks), Config::kThreads, Config::kSmemBytes, stream,
                 tile::group_params(grouped, Config::BM, Config::BN));
}

template <class Config>
cudaError_t launch(const GroupedProduct& grouped, cudaStream_t stream) {
  const Problem& p = grouped.product;
  const bool is_wide =
      grouped.divided != Divided::kInner && p.b_major() == Major::kK && alignment_b(p) == 16 && p.k % 4 == 0;
  return is_wide ? launch<Config, true>(grouped, stream) : launch<Config, false>(grouped, stream);
}

template <class... Kernels>
Status launch_at(int index, const std::tuple<Kernels...>&, const GroupedProduct& grouped, cudaStream_t stream) {
  Status status = cudaErrorInvalidValue;
  int i = 0;
  ((i++ == index ? void(status = launch<typename Kernels::Config>(grouped, stream)) : void()), ...);
  return status;
}

}  // namespace
}  // namespace simt_grouped

Status launch_simt_grouped(int index, const GroupedProduct& grouped, Stream stream) {
  return simt_grouped::launch_at(index, simt_grouped::kKernels, grouped, static_cast<cudaStream_t>(stream));
}

}  // namespace hgemm
