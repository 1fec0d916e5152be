// Step 0: c = a + b. No element is reused, so only the way in which bytes move matters.
// Variants: wider accesses (16 bytes per thread instead of 4 or 2) need fewer instructions and keep more bytes in
// flight. 16-bit elements halve the bytes. _grid_stride launches a grid that just fills the GPU and loops, instead of a
// grid that covers c.
// All variants start while the kernel before them drains, except _serial, which shows what that overlap is worth.
// Expected: at 1 FLOP for 12 or 6 bytes, DRAM bandwidth is the limit where the arrays exceed L2, L2 bandwidth where
// they fit, and the launch latency under 1 MB.
// Source: NVIDIA, "CUDA Pro Tip: Increase Performance with Vectorized Memory Access", "CUDA Pro Tip: Write Flexible
// Kernels with Grid-Stride Loops"; CUDA C++ Programming Guide, "Programmatic Dependent Launch and Synchronization".
#include <algorithm>
#include <cstdint>
#include <type_traits>

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "core/launch.cuh"
#include "ladder/element.cuh"
#include "ladder/ladder.h"
#include "ptx/dependent_launch.cuh"

namespace hgemm::ladder {
namespace {

// The blocks are large because the blocks of a launch that overlaps its predecessor start at a lower rate, and kernels
// with narrow accesses need many blocks.
constexpr int kThreads = 512;
constexpr int kBlocksPerSm = 2048 / kThreads;

enum Grid { kCovering, kStriding };
/// Whether a launch may start while the kernel before it in the stream still runs.
enum Start { kOverlapping, kSerial };

/// A thread adds `width` consecutive elements, in accesses of `access` elements.
struct AddShape {
  int width, access;
  Grid grid;
  Start start = kOverlapping;
};

/// T is the type in memory and Pair the operand of one add instruction.
template <DType kType>
struct Addend;
template <>
struct Addend<DType::kF32> {
  using T = float;
  using Pair = float;
};
template <>
struct Addend<DType::kF16> {
  using T = __half;
  using Pair = __half2;
};
template <>
struct Addend<DType::kBF16> {
  using T = __nv_bfloat16;
  using Pair = __nv_bfloat162;
};

/// Adds two words as values of type Unit. The kernel keeps an access in plain words because copies of __half2 would
/// split the access into separate loads.
template <class Unit, class Word>
__device__ __forceinline__ Word add_as(Word x, Word y) {
  static_assert(sizeof(Unit) == sizeof(Word));
  const Unit sum = reinterpret_cast<const Unit&>(x) + reinterpret_cast<const Unit&>(y);
  return reinterpret_cast<const Word&>(sum);
}

template <class A, const AddShape& S>
struct Adding {
  using T = typename A::T;
  using Unit = std::conditional_t<S.access == 1, T, typename A::Pair>;
  using Word = std::conditional_t<sizeof(Unit) == 4, uint32_t, uint16_t>;
  static constexpr int kWidth = S.width, kAccesses = S.width / S.access;
  static constexpr int kWords = S.access * sizeof(T) / sizeof(Word);  // per access
  static constexpr bool kStrides = S.grid == kStriding;
};

template <class Adding>
__global__ void __launch_bounds__(kThreads) add(AddProblem p) {
  using T = typename Adding::T;
  using Access = Pack<typename Adding::Word, Adding::kWords>;
  constexpr int kWidth = Adding::kWidth, kAccesses = Adding::kAccesses;

  // Every thread waits, also one without an element: the next kernel relies on this one to end after all kernels before
  // it.
  ptx::grid_launch_dependents();
  ptx::grid_dependency_wait();
  // NOTE: no __restrict__. With it the compiler would use ld.global.nc for the loads, which may move above the wait.
  const auto* a = static_cast<const T*>(p.a);
  const auto* b = static_cast<const T*>(p.b);
  auto* c = static_cast<T*>(p.c);
  int64_t i = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kWidth;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads * kWidth;
  const auto add_whole = [&] {
    Access x[kAccesses], y[kAccesses];
#pragma unroll
    for (int v = 0; v < kAccesses; ++v) {
      x[v] = reinterpret_cast<const Access*>(a + i)[v];
      y[v] = reinterpret_cast<const Access*>(b + i)[v];
    }
#pragma unroll
    for (int v = 0; v < kAccesses; ++v) {
#pragma unroll
      for (int w = 0; w < Adding::kWords; ++w) x[v].x[w] = add_as<typename Adding::Unit>(x[v].x[w], y[v].x[w]);
      reinterpret_cast<Access*>(c + i)[v] = x[v];
    }
  };

  if constexpr (Adding::kStrides) {
    for (; i + kWidth <= p.count; i += stride) add_whole();
  } else {
    if (i + kWidth <= p.count) return add_whole();
  }
#pragma unroll 1
  for (const int64_t end = min(p.count, i + kWidth); i < end; ++i) c[i] = a[i] + b[i];
}

cudaError_t blocks_for(int64_t count, const AddShape& shape, unsigned* blocks) {
  constexpr int64_t kMaxBlocks = INT32_MAX;
  int64_t limit = kMaxBlocks;
  if (shape.grid == kStriding) {
    int device = 0, sms = 0;
    if (const cudaError_t e = cudaGetDevice(&device)) return e;
    if (const cudaError_t e = cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device)) return e;
    limit = int64_t{sms} * kBlocksPerSm;
  }
  const int64_t per_block = int64_t{kThreads} * shape.width;
  *blocks = static_cast<unsigned>(std::min((count + per_block - 1) / per_block, limit));
  return cudaSuccess;
}

/// Sets `waits` to whether the code that runs on this device was compiled for sm_90 or newer. Code for an older
/// architecture does not wait by itself for the kernels before it.
cudaError_t waits_by_itself(const void* kernel, bool* waits) {
  cudaFuncAttributes attributes;
  const cudaError_t e = cudaFuncGetAttributes(&attributes, kernel);
  *waits = e == cudaSuccess && attributes.ptxVersion >= 90;
  return e;
}

constexpr AddShape kOneByOne = {1, 1, kCovering};

template <class A, const AddShape& S>
Status launch(const AddProblem& p, Stream stream) {
  if (p.count == 0) return cudaSuccess;
  const auto addresses =
      reinterpret_cast<uintptr_t>(p.a) | reinterpret_cast<uintptr_t>(p.b) | reinterpret_cast<uintptr_t>(p.c);
  const bool aligned = addresses % (S.access * sizeof(typename A::T)) == 0;
  unsigned blocks = 0;
  if (const cudaError_t e = blocks_for(p.count, aligned ? S : kOneByOne, &blocks)) return e;
  const auto kernel = aligned ? add<Adding<A, S>> : add<Adding<A, kOneByOne>>;
  bool overlaps = false;
  if constexpr (S.start == kOverlapping) {
    if (const cudaError_t e = waits_by_itself(reinterpret_cast<const void*>(kernel), &overlaps)) return e;
  }
  return enqueue_clusters(kernel, blocks, kThreads, 0, 1, overlaps, static_cast<cudaStream_t>(stream), p);
}

}  // namespace

#define ELEMENTWISE_ADD(NAME, DTYPE, ...)                             \
  constexpr AddShape kShape_##NAME = {__VA_ARGS__};                   \
  Status launch_##NAME(const AddProblem& p, Stream stream) {          \
    return launch<Addend<DType::k##DTYPE>, kShape_##NAME>(p, stream); \
  }
#include "ladder/variants.inc"

}  // namespace hgemm::ladder
