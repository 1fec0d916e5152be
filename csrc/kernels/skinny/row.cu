// The launcher of the kernel for one row in slices: turns a Problem into a launch.
#include <cuda_runtime.h>

#include <atomic>

#include "core/convert.cuh"
#include "core/launch.cuh"
#include "kernels/skinny/row.h"
#include "kernels/skinny/row_kernel.cuh"
#include "tile/short_side.h"

namespace hgemm::skinny {
namespace {

template <class T, Major kMajor>
cudaError_t launch_major(const Problem& p, const RowParams& params, cudaStream_t stream) {
  static std::atomic<uint64_t> smem_allowed{0};
  auto* const k = row_kernel<T, kMajor>;
  if (const cudaError_t e = allow_smem(k, kMostRowK * 2, smem_allowed)) return e;
  constexpr int kRows = RowOfSums<T, kMajor>::kRows;
  const int steps = (params.k + kSliceK - 1) / kSliceK;
  const dim3 grid((params.rows + kRows - 1) / kRows, static_cast<unsigned>(p.batches()));
  return enqueue_clusters(k, grid, kRowThreads, steps * kSliceK * 2, 1, true, stream, params);
}

template <class T>
cudaError_t launch_type(const Problem& p, const ShortSide& sides, const RowParams& params, cudaStream_t stream) {
  return sides.w_major == Major::kK ? launch_major<T, Major::kK>(p, params, stream)
                                    : launch_major<T, Major::kMN>(p, params, stream);
}

}  // namespace

Status launch_row(const Problem& p, Stream stream_) {
  const auto stream = static_cast<cudaStream_t>(stream_);
  const ShortSide sides = short_side_of(p);
  RowParams params{};
  tile::set_operands(p, sides, &params);
  params.epilogue = tile::epilogue_params(p, nullptr);
  return p.dtype == DType::kF16 ? launch_type<ElementOf<DType::kF16>>(p, sides, params, stream)
                                : launch_type<ElementOf<DType::kBF16>>(p, sides, params, stream);
}

}  // namespace hgemm::skinny
