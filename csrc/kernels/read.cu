#include "core/read.h"

#include <cuda_runtime.h>

#include "core/launch.cuh"
#include "ptx/global.cuh"

namespace hgemm {
namespace {

constexpr int kThreads = 256;
constexpr int kLoads = 8;  // loads of 16 bytes that a thread has in flight

/// Each block reads one chunk of kThreads * kLoads * 16 bytes. On the H200, one block per chunk was never slower than
/// fewer blocks that loop over chunks.
__global__ void __launch_bounds__(kThreads) read(const uint4* data, int64_t count, uint32_t* sink) {
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kThreads * kLoads + threadIdx.x;
  uint4 v[kLoads];
#pragma unroll
  for (int i = 0; i < kLoads; ++i) {
    const int64_t at = first + i * kThreads;
    v[i] = at < count ? ptx::ld_once_16(data + at) : uint4{};
  }
  uint32_t bits = 0;
#pragma unroll
  for (const uint4& x : v) bits ^= x.x ^ x.y ^ x.z ^ x.w;
  if (bits == 0x9e3779b9) *sink = bits;  // hardly ever; it keeps the compiler from dropping the loads
}

}  // namespace

Status launch_read(const void* data, int64_t bytes, void* sink, Stream stream) {
  if (bytes == 0) return cudaSuccess;
  constexpr int64_t kPiece = kThreads * kLoads * 16;
  const auto blocks = static_cast<unsigned>((bytes + kPiece - 1) / kPiece);
  return enqueue(read, blocks, kThreads, 0, static_cast<cudaStream_t>(stream), static_cast<const uint4*>(data),
                 bytes / 16, static_cast<uint32_t*>(sink));
}

}  // namespace hgemm
