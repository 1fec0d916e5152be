#include "core/activation.h"

#include <algorithm>

#include <cuda_runtime.h>

#include "core/convert.cuh"
#include "core/launch.cuh"
#include "tile/epilogue.cuh"

namespace hgemm {
namespace {

constexpr int kThreads = 256;
constexpr int kPerThread = 8;

/// One thread per eight consecutive elements. `wide`: x and y may be accessed 16 bytes at a time.
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

/// One thread per eight consecutive columns of a row of y. `wide`: x and y may be accessed 16 bytes at a time.
template <class T>
__global__ void __launch_bounds__(kThreads)
    gate_rows(const T* x, T* y, int64_t rows, int64_t n, Activation act, bool wide) {
  const int64_t groups = (n + kPerThread - 1) / kPerThread;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t id = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; id < rows * groups; id += stride) {
    const int64_t row = id / groups, i = (id - row * groups) * kPerThread;
    const tile::Span span{0, static_cast<int>(min(n - i, static_cast<int64_t>(kPerThread)))};
    float gate[kPerThread] = {}, up[kPerThread] = {};
    tile::add_scaled(gate, x + row * 2 * n + i, 1, span, wide, 1.0f);
    tile::add_scaled(up, x + row * 2 * n + n + i, 1, span, wide, 1.0f);
#pragma unroll
    for (int j = 0; j < kPerThread; ++j) gate[j] = tile::activate(gate[j], act) * up[j];
    tile::store(y + row * n + i, gate, span, wide);
  }
}

/// One thread per eight consecutive columns of a row of d. `wide`: d and the bias may be accessed 16 bytes at a time.
template <class T>
__global__ void __launch_bounds__(kThreads)
    finish_groups(T* d, int64_t rows, int64_t n, int64_t pitch, const int32_t* ends, int64_t groups, const T* bias,
                  Activation act, bool wide) {
  const int64_t parts = (n + kPerThread - 1) / kPerThread, stride = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t id = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; id < rows * parts; id += stride) {
    const int64_t row = id / parts, i = (id - row * parts) * kPerThread;
    int64_t group = 0, high = groups;  // the first group whose end is behind the row
    while (group < high) {
      const int64_t middle = (group + high) / 2;
      if (ends[middle] > row) {
        high = middle;
      } else {
        group = middle + 1;
      }
    }
    if (group == groups) continue;
    const tile::Span span{0, static_cast<int>(min(n - i, static_cast<int64_t>(kPerThread)))};
    T* const at = d + row * pitch + i;
    float v[kPerThread] = {};
    tile::add_scaled(v, at, 1, span, wide, 1.0f);
    if (bias != nullptr) tile::add_scaled(v, bias + group * n + i, 1, span, wide, 1.0f);
#pragma unroll
    for (float& value : v) value = tile::activate(value, act);
    tile::store(at, v, span, wide);
  }
}

constexpr int64_t kMaxBlocks = 1 << 16;

template <class T>
cudaError_t launch_finish(void* d, int64_t rows, int64_t n, int64_t pitch, const int32_t* ends, int64_t groups,
                          const void* bias, Activation act, cudaStream_t stream) {
  const int64_t blocks = (rows * ((n + kPerThread - 1) / kPerThread) + kThreads - 1) / kThreads;
  const bool wide = tile::aligned16(d) && tile::aligned16(bias) && n % kPerThread == 0 && pitch % kPerThread == 0;
  return enqueue(finish_groups<T>, static_cast<unsigned>(std::min(blocks, kMaxBlocks)), kThreads, 0, stream,
                 static_cast<T*>(d), rows, n, pitch, ends, groups, static_cast<const T*>(bias), act, wide);
}

template <class T>
cudaError_t launch_gate(const void* x, void* y, int64_t rows, int64_t n, Activation act, cudaStream_t stream) {
  const int64_t blocks = (rows * ((n + kPerThread - 1) / kPerThread) + kThreads - 1) / kThreads;
  const bool wide = tile::aligned16(x) && tile::aligned16(y) && n % kPerThread == 0;
  return enqueue(gate_rows<T>, static_cast<unsigned>(std::min(blocks, kMaxBlocks)), kThreads, 0, stream,
                 static_cast<const T*>(x), static_cast<T*>(y), rows, n, act, wide);
}

template <class T>
cudaError_t launch(const void* x, void* y, int64_t count, Activation act, cudaStream_t stream) {
  const int64_t blocks = (count + kThreads * kPerThread - 1) / (kThreads * kPerThread);
  const bool wide = tile::aligned16(x) && tile::aligned16(y);
  return enqueue(activate_all<T>, static_cast<unsigned>(std::min(blocks, kMaxBlocks)), kThreads, 0, stream,
                 static_cast<const T*>(x), static_cast<T*>(y), count, act, wide);
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

Status launch_gate(const void* x, void* y, int64_t rows, int64_t n, DType dtype, Activation act, Stream stream) {
  if (rows == 0 || n == 0) return cudaSuccess;
  const auto s = static_cast<cudaStream_t>(stream);
  switch (dtype) {
    case DType::kF16: return launch_gate<__half>(x, y, rows, n, act, s);
    case DType::kBF16: return launch_gate<__nv_bfloat16>(x, y, rows, n, act, s);
    case DType::kF32: return launch_gate<float>(x, y, rows, n, act, s);
  }
  return cudaErrorInvalidValue;
}

Status launch_finish_groups(void* d, int64_t rows, int64_t n, int64_t pitch, const int32_t* ends, int64_t groups,
                            const void* bias, DType dtype, Activation act, Stream stream) {
  if (rows == 0 || n == 0) return cudaSuccess;
  const auto s = static_cast<cudaStream_t>(stream);
  switch (dtype) {
    case DType::kF16: return launch_finish<__half>(d, rows, n, pitch, ends, groups, bias, act, s);
    case DType::kBF16: return launch_finish<__nv_bfloat16>(d, rows, n, pitch, ends, groups, bias, act, s);
    case DType::kF32: return launch_finish<float>(d, rows, n, pitch, ends, groups, bias, act, s);
  }
  return cudaErrorInvalidValue;
}

}  // namespace hgemm
