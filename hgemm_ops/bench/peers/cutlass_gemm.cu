// One CUTLASS 3.x kernel for Hopper behind a C function, compiled by cutlass.py: a shared object per configuration.
//
// D (m, n) = A (m, k) x B (k, n), fp32 accumulation; A and D row-major, B row-major or, with PEER_B_TRANSPOSED,
// stored (n, k). PEER_ELEMENT is the type, PEER_M and PEER_N the tile, PEER_PINGPONG the schedule.

#include <cuda_runtime.h>

#include <cstdint>

#include "cute/tensor.hpp"
#include "cutlass/cutlass.h"
#include "cutlass/epilogue/collective/collective_builder.hpp"
#include "cutlass/gemm/collective/collective_builder.hpp"
#include "cutlass/gemm/device/gemm_universal_adapter.h"
#include "cutlass/gemm/kernel/gemm_universal.hpp"

namespace {

using Element = PEER_ELEMENT;
using Tile = cute::Shape<cute::Int<PEER_M>, cute::Int<PEER_N>, cute::_64>;
using Cluster = cute::Shape<cute::_2, cute::_1, cute::_1>;
using RowMajor = cutlass::layout::RowMajor;
using LayoutB = cute::conditional_t<PEER_B_TRANSPOSED, cutlass::layout::ColumnMajor, RowMajor>;

using KernelSchedule = cute::conditional_t<PEER_PINGPONG, cutlass::gemm::KernelTmaWarpSpecializedPingpong,
                                           cutlass::gemm::KernelTmaWarpSpecializedCooperative>;
using EpilogueSchedule = cute::conditional_t<PEER_PINGPONG, cutlass::epilogue::TmaWarpSpecialized,
                                             cutlass::epilogue::TmaWarpSpecializedCooperative>;

constexpr int kAlignment = 16 / sizeof(Element);

// No source matrix (void): its shared memory goes to the main loop's stages.
using Epilogue = typename cutlass::epilogue::collective::CollectiveBuilder<
    cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, Tile, Cluster, cutlass::epilogue::collective::EpilogueTileAuto,
    float, float, void, RowMajor, kAlignment, Element, RowMajor, kAlignment, EpilogueSchedule>::CollectiveOp;

using Mainloop = typename cutlass::gemm::collective::CollectiveBuilder<
    cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, Element, RowMajor, kAlignment, Element, LayoutB, kAlignment,
    float, Tile, Cluster,
    cutlass::gemm::collective::StageCountAutoCarveout<static_cast<int>(sizeof(typename Epilogue::SharedStorage))>,
    KernelSchedule>::CollectiveOp;

using Kernel = cutlass::gemm::kernel::GemmUniversal<cute::Shape<int, int, int, int>, Mainloop, Epilogue>;
using Gemm = cutlass::gemm::device::GemmUniversalAdapter<Kernel>;

template <class Stride>
Stride stride_of(int64_t leading, int64_t batch) {
  Stride stride;
  if constexpr (cute::is_same_v<cute::remove_cvref_t<decltype(cute::get<0>(stride))>, int64_t>) {
    cute::get<0>(stride) = leading;
  } else {
    cute::get<1>(stride) = leading;
  }
  cute::get<2>(stride) = batch;
  return stride;
}

}  // namespace

// Leading dimensions and batch strides are in elements. Returns a cutlass::Status, 0 where the kernel was launched.
extern "C" int peer_gemm(const void* a, const void* b, void* d, int m, int n, int k, int batch, int64_t lda,
                         int64_t ldb, int64_t a_batch, int64_t b_batch, int swizzle, int sm_count,
                         cudaStream_t stream) {
  typename Gemm::Arguments arguments{
      cutlass::gemm::GemmUniversalMode::kGemm,
      {m, n, k, batch},
      {static_cast<const Element*>(a), stride_of<typename Kernel::StrideA>(lda, a_batch),
       static_cast<const Element*>(b), stride_of<typename Kernel::StrideB>(ldb, b_batch)},
      {{1.0f, 0.0f},
       nullptr,
       typename Kernel::StrideC{},
       static_cast<Element*>(d),
       stride_of<typename Kernel::StrideD>(n, int64_t{m} * n)},
      {0, sm_count}};
  arguments.scheduler.max_swizzle_size = swizzle;
  if (const auto status = Gemm::can_implement(arguments); status != cutlass::Status::kSuccess) {
    return static_cast<int>(status);
  }
  if (Gemm::get_workspace_size(arguments) != 0) {
    return static_cast<int>(cutlass::Status::kErrorWorkspaceNull);
  }
  Gemm gemm;
  return static_cast<int>(gemm(arguments, nullptr, stream));
}
