// What launchers share.
#pragma once

#include <cuda_runtime.h>

#include <atomic>
#include <cstdint>
#include <utility>

namespace hgemm {

/// kernel<<<grid, threads, smem_bytes, stream>>>(arguments...), with the launch's own status. cudaGetLastError() would
/// also give what an earlier call, anybody's on this thread, left behind.
template <class... Params, class... Arguments>
cudaError_t enqueue(void (*kernel)(Params...), dim3 grid, int threads, int smem_bytes, cudaStream_t stream,
                    Arguments&&... arguments) {
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = threads;
  config.dynamicSmemBytes = smem_bytes;
  config.stream = stream;
  return cudaLaunchKernelEx(&config, kernel, std::forward<Arguments>(arguments)...);
}

/// Opts a kernel into more than 48 KB of shared memory, once per device; `done` belongs to the kernel.
template <class Kernel>
cudaError_t allow_smem(Kernel* kernel, int bytes, std::atomic<uint64_t>& done) {
  int device = 0;
  if (const cudaError_t e = cudaGetDevice(&device); e != cudaSuccess) return e;
  const uint64_t bit = uint64_t{1} << (device % 64);
  if (done.load(std::memory_order_acquire) & bit) return cudaSuccess;
  const cudaError_t e = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (e == cudaSuccess) done.fetch_or(bit, std::memory_order_release);
  return e;
}

}  // namespace hgemm
