// How kernels are launched: shared memory, clusters, programmatic dependent launch.
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

/// Whether a stream capture may hold programmatic dependent launches: drivers before CUDA 12.3 refuse them.
inline bool can_launch_dependents() {
  static const bool can = [] {
    int version = 0;
    return cudaDriverGetVersion(&version) == cudaSuccess && version >= 12030;
  }();
  return can;
}

// What depends on the architectures that a file is compiled for is the file's own (static): files differ in them, and
// the linker would keep one function for all.

/// Whether this file's code for sm_90 and newer was compiled for sm_90: PTX of an older architecture neither waits for
/// the kernels before it nor knows clusters.
[[maybe_unused]] static bool has_sm90_code() {
  for (int arch : {__CUDA_ARCH_LIST__}) {
    if (arch >= 900) return true;
  }
  return false;
}

/// Lets a kernel for sm_90 and newer that waits by itself for those before it (ptx/dependent_launch.cuh) start early,
/// where its code does wait. No other function asks for that. `config.attrs` has room for one more.
[[maybe_unused]] static void allow_early_start(cudaLaunchConfig_t* config) {
  if (!has_sm90_code() || !can_launch_dependents()) return;
  cudaLaunchAttribute& attribute = config->attrs[config->numAttrs++];
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
}

/// The same as enqueue() in clusters of (1, cluster, 1) blocks. `dependent`: allow_early_start.
template <class Params>
static cudaError_t enqueue_clusters(void (*kernel)(Params), dim3 grid, int threads, int smem_bytes, unsigned cluster,
                                    bool dependent, cudaStream_t stream, const Params& params) {
  cudaLaunchAttribute attributes[2]{};
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = threads;
  config.dynamicSmemBytes = smem_bytes;
  config.stream = stream;
  config.attrs = attributes;
  if (cluster > 1) {
    attributes[config.numAttrs].id = cudaLaunchAttributeClusterDimension;
    attributes[config.numAttrs++].val.clusterDim = {1, cluster, 1};
  }
  if (dependent) allow_early_start(&config);
  return cudaLaunchKernelEx(&config, kernel, params);
}

}  // namespace hgemm
