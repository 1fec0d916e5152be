#include "core/activation.h"

#include <algorithm>

#include <cuda_runtime.h>

#include "core/convert.cuh"
#include "tile/epilogue.cuh"

namespace hgemm {
namespace {

constexpr int kThreads = 256;
constexpr int kPerThread = 8;

template <class T>
__global__ void __launch_bounds__(kThreads) activate_all(const T* x, T* y, int64_t count, Activation act, bool wide) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads * kPerThread;
  for (int64_t i = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kPerThread; i < count; i += stride) {
    const tile::Span span{0, static_cast<int>(min(count - i, static_cast<int64_t>(kPerThread)))};
    float v[kPerThread] = {};
    tile::add_scaled(v, x + i, 1, span, wide, 1.0f);
#pragma unroll
    for (float& value : v) value = tile::activate(value, act);
    tile::store(y + i, v, span, wide);
  }
}

template <class T>
cudaError_t launch(const void* x, void* y, int64_t count, Activation act, cudaStream_t stream) {
  constexpr int64_t kMaxBlocks = 1 << 16;
  const int64_t blocks = (count + kThreads * kPerThread - 1) / (kThreads * kPerThread);
  const bool wide = tile::aligned16(x) && tile::aligned16(y);
  activate_all<T><<<static_cast<unsigned>(std::min(blocks, kMaxBlocks)), kThreads, 0, stream>>>(
      static_cast<const T*>(x), static_cast<T*>(y), count, act, wide);
  return cudaGetLastError();
}

}  // namespace

Status launch_activation(const void* x, void* y, int64_t count, DType dtype, Activation act, Stream stream) {
  if (count == 0) return cudaSuccess;
  const auto s = static_cast<cudaStream_t>(stream);
  switch (dtype) {
    case DType::kF16: return launch<__half>(x, y, count, act, s);
    case DType::kBF16: return launch<__nv_bfloat16>(x, y, count, act, s);
    case DType::kF32: return launch<float>(x, y, count, act, s);
  }
  return cudaErrorInvalidValue;
}

}  // namespace hgemm
