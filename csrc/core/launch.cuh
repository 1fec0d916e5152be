// Kernel launches: dynamic shared memory, thread block clusters, programmatic dependent launch.
#pragma once

#include <cuda_runtime.h>

#include <atomic>
#include <cstdint>
#include <utility>

#include "core/device.h"

namespace hgemm {

/// Launches kernel<<<grid, threads, smem_bytes, stream>>>(arguments...) and returns the status of this launch.
/// cudaGetLastError() would also return the error that an earlier call on this thread left behind.
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

/// Opts a kernel into `bytes` of dynamic shared memory, which may exceed 48 KB, in the current context. `done` belongs
/// to this kernel, and has one bit per device in whose primary context it has opted in: later calls cost no CUDA call
/// there. Other contexts have settings of their own.
template <class Kernel>
cudaError_t allow_smem(Kernel* kernel, int bytes, std::atomic<uint64_t>& done) {
  const int device = current_primary();
  const uint64_t bit = device < 0 ? 0 : uint64_t{1} << device;
  if (done.load(std::memory_order_acquire) & bit) return cudaSuccess;
  const cudaError_t e = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (e == cudaSuccess) done.fetch_or(bit, std::memory_order_release);
  return e;
}

/// True if a stream capture may contain programmatic dependent launches. Drivers older than CUDA 12.3 refuse them.
inline bool can_launch_dependents() {
  static const bool can = [] {
    int version = 0;
    return cudaDriverGetVersion(&version) == cudaSuccess && version >= 12030;
  }();
  return can;
}

// The functions below depend on the architectures that the including file is compiled for. They are static because the
// files differ in these, while the linker would keep only one copy of an inline function.

/// True if this file has code for sm_90 or newer. Otherwise such devices run the PTX of an older architecture, which
/// has no clusters and does not wait for the preceding kernel of the stream.
[[maybe_unused]] static bool has_sm90_code() {
  for (int arch : {__CUDA_ARCH_LIST__}) {
    if (arch >= 900) return true;
  }
  return false;
}

/// Adds programmatic dependent launch to the configuration: the kernel may start while the preceding kernel of the
/// stream is still running. The kernel must therefore execute griddepcontrol.wait (ptx/dependent_launch.cuh) before it
/// touches memory that earlier kernels use. The function does nothing where this file has no code that waits, or where
/// the driver cannot capture such launches. It is the only place that sets the attribute. `config->attrs` must have
/// space for one more attribute.
[[maybe_unused]] static void allow_early_start(cudaLaunchConfig_t* config) {
  if (!has_sm90_code() || !can_launch_dependents()) return;
  cudaLaunchAttribute& attribute = config->attrs[config->numAttrs++];
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
}

/// The same as enqueue(), in clusters of (1, cluster, 1) blocks; 1 is a launch without clusters. If `dependent`, the
/// kernel may start early, see allow_early_start().
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
