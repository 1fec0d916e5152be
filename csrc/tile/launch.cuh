// Launches with attributes.
#pragma once

#include <cuda_runtime.h>

namespace hgemm::tile {

/// Whether a stream capture may hold programmatic dependent launches: drivers before CUDA 12.3 refuse them.
inline bool can_launch_dependents() {
  static const bool can = [] {
    int version = 0;
    return cudaDriverGetVersion(&version) == cudaSuccess && version >= 12030;
  }();
  return can;
}

/// Whether what runs on sm_90 and newer was compiled for it: PTX of an older architecture neither waits for the kernels
/// before it nor knows clusters.
inline bool has_sm90_code() {
  for (int arch : {__CUDA_ARCH_LIST__}) {
    if (arch >= 900) return true;
  }
  return false;
}

/// Launches one cluster of (1, cluster, 1) blocks after another. `dependent`: the kernel waits by itself for those
/// before it (ptx/dependent_launch.cuh), so that it may start early; sm_90 and newer.
template <class Params>
cudaError_t launch(void (*kernel)(Params), dim3 grid, int threads, int smem_bytes, unsigned cluster, bool dependent,
                   cudaStream_t stream, const Params& params) {
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
  if (dependent && can_launch_dependents()) {
    attributes[config.numAttrs].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[config.numAttrs++].val.programmaticStreamSerializationAllowed = 1;
  }
  return cudaLaunchKernelEx(&config, kernel, params);
}

}  // namespace hgemm::tile
