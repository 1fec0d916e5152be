// The launcher of the kernel for unaligned rows: turns a Problem into a launch.
#include <cuda_runtime.h>

#include "core/convert.cuh"
#include "core/launch.cuh"
#include "kernels/skinny/in_order.h"
#include "kernels/skinny/in_order_kernel.cuh"
#include "tile/short_side.h"

namespace hgemm::skinny {
namespace {

template <class T, Major kMajor>
cudaError_t launch_major(const Problem& p, const InOrderParams& params, cudaStream_t stream) {
  constexpr int kRows = Units<kMajor>::kRows;
  const dim3 grid((params.rows + kRows - 1) / kRows, static_cast<unsigned>(p.batches()));
  return enqueue_clusters(in_order_kernel<T, kMajor>, grid, kInOrderThreads, 0, 1, true, stream, params);
}

template <class T>
cudaError_t launch_type(const Problem& p, const ShortSide& sides, const InOrderParams& params, cudaStream_t stream) {
  return sides.w_major == Major::kK ? launch_major<T, Major::kK>(p, params, stream)
                                    : launch_major<T, Major::kMN>(p, params, stream);
}

}  // namespace

Status launch_in_order(const Problem& p, Stream stream_) {
  const auto stream = static_cast<cudaStream_t>(stream_);
  const ShortSide sides = short_side_of(p);
  InOrderParams params{};
  tile::set_operands(p, sides, &params);
  params.slices = sums_in_slices(p) ? kSlices : 1;
  params.epilogue = tile::epilogue_params(p, nullptr);
  return p.dtype == DType::kF16 ? launch_type<ElementOf<DType::kF16>>(p, sides, params, stream)
                                : launch_type<ElementOf<DType::kBF16>>(p, sides, params, stream);
}

}  // namespace hgemm::skinny
