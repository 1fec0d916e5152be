// Grouped products by mma.sync: D[g] = A[g] @ B[g] for the groups of rows, of columns or of k, whose ends lie in device
// memory. A block computes one output tile of one group (tile/groups.cuh), by the main loop of the family.
#include <cuda_runtime.h>

#include <atomic>
#include <tuple>

#include "core/convert.cuh"
#include "core/launch.cuh"
#include "kernels/sm80_mma/grouped_list.h"
#include "kernels/sm80_mma/mainloop.cuh"
#include "kernels/variants.h"
#include "tile/epilogue.cuh"
#include "tile/groups.cuh"

namespace hgemm {
namespace sm80_mma {
namespace {

struct GroupedParams {
  tile::GroupParams groups;
  bool aligned_a, aligned_b;  // address and strides are multiples of 16 bytes
};

template <class Traits>
__global__ void __launch_bounds__(Traits::kThreads, 1) grouped_kernel(const __grid_constant__ GroupedParams p) {
  using T = typename Traits::T;
  constexpr bool kKMajorA = Traits::kMajorA == Major::kK, kKMajorB = Traits::kMajorB == Major::kK;
  extern __shared__ __align__(1024) unsigned char smem[];
  __shared__ tile::GroupTile kept;  // for the epilogue: registers are few in the main loop
  tile::GroupTile tile;
  if (!tile::tile_of_block<Traits::BM, Traits::BN>(p.groups, &tile)) return;
  if (threadIdx.x == 0) kept = tile;  // compute_tile() has barriers between this and the epilogue
  const tile::GroupedMatrix &a = p.groups.a, &b = p.groups.b;
  const Operands<T> operands{
      .a = static_cast<const T*>(a.data) + tile.a,
      .b = static_cast<const T*>(b.data) + tile.b,
      .lda = kKMajorA ? a.row : a.col,
      .ldb = kKMajorB ? b.col : b.row,
      .m = tile.m,
      .n = tile.n,
      .k0 = 0,
      .k1 = tile.k,
      .k_tiles = (tile.k + Traits::BK - 1) / Traits::BK,
      .in_slices = false,
      .wide_a = p.aligned_a && tile.a % 8 == 0 && (kKMajorA ? tile.k : tile.m) % 8 == 0,
      .wide_b = p.aligned_b && tile.b % 8 == 0 && (kKMajorB ? tile.k : tile.n) % 8 == 0,
  };
  compute_tile<Traits>(operands, tile.m0, tile.n0, smem, [&](int row, int column, const float* scratch) {
    const tile::GroupedMatrix& d = p.groups.d;
    tile::EpilogueParams epilogue{};  // the compiler leaves out what stays zero
    epilogue.m = kept.m;
    epilogue.n = kept.n;
    epilogue.alpha = 1.0f;
    epilogue.d = static_cast<T*>(const_cast<void*>(d.data)) + kept.d;
    epilogue.ldd = d.row;
    epilogue.wide_d = reinterpret_cast<uint64_t>(epilogue.d) % 16 == 0 && d.row % 8 == 0;
    tile::emit_slice<T, Traits::kEpilogueRows, Traits::WN>(epilogue, tile::BatchOffset{0, 0}, nullptr, row, column,
                                                           scratch, Traits::kEpilogueRow);
  });
}

template <class Config, class T, Major kMajorA, Major kMajorB>
cudaError_t launch_traits(const GroupedProduct& grouped, cudaStream_t stream) {
  using Traits = Traits<Config, T, kMajorA, kMajorB, Config::kUnaligned == Unaligned::kNarrow>;
  static std::atomic<uint64_t> smem_allowed{0};
  auto* const k = grouped_kernel<Traits>;
  if (cudaError_t e = allow_smem(k, Traits::kSmemBytes, smem_allowed); e != cudaSuccess) return e;
  const Problem& p = grouped.product;
  GroupedParams params{};
  params.groups = tile::group_params(grouped, Traits::BM, Traits::BN);
  params.aligned_a = alignment_a(p) == 16;
  params.aligned_b = alignment_b(p) == 16;
  const int64_t blocks = tile::most_group_tiles(grouped, Traits::BM, Traits::BN);
  return enqueue(k, static_cast<unsigned>(blocks), Traits::kThreads, Traits::kSmemBytes, stream, params);
}

template <class Config, class T>
cudaError_t launch_orders(const GroupedProduct& grouped, cudaStream_t stream) {
  const bool ka = grouped.product.a_major() == Major::kK, kb = grouped.product.b_major() == Major::kK;
  if (ka && kb) return launch_traits<Config, T, Major::kK, Major::kK>(grouped, stream);
  if (ka) return launch_traits<Config, T, Major::kK, Major::kMN>(grouped, stream);
  if (!kb) return launch_traits<Config, T, Major::kMN, Major::kMN>(grouped, stream);
  return cudaErrorInvalidValue;  // the fourth case is rare, and not worth the time to compile it
}

template <class... Kernels>
Status launch_at(int index, const std::tuple<Kernels...>&, const GroupedProduct& grouped, cudaStream_t stream) {
  Status status = cudaErrorInvalidValue;
  const auto launch = [&](auto kernel) {
    using Config = typename decltype(kernel)::Config;
    status = grouped.product.dtype == DType::kF16 ? launch_orders<Config, __half>(grouped, stream)
                                                  : launch_orders<Config, __nv_bfloat16>(grouped, stream);
  };
  int i = 0;
  ((i++ == index ? launch(Kernels()) : void()), ...);
  return status;
}

}  // namespace
}  // namespace sm80_mma

Status launch_sm80_grouped(int index, const GroupedProduct& grouped, Stream stream) {
  return sm80_mma::launch_at(index, sm80_mma::grouped::kKernels, grouped, static_cast<cudaStream_t>(stream));
}

}  // namespace hgemm
