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

// What depends on the architectures that a file is compiled for is the file's own (static): files differ in them, and
// the linker would keep one function for all.

/// Whether what runs on sm_90 and newer was compiled for it: PTX of an older architecture neither waits for the kernels
/// before it nor knows clusters.
[[maybe_unused]] static bool has_sm90_code() {
  for (int arch : {__CUDA_ARCH_LIST__}) {
    if (arch >= 900) return true;
  }
  return false;
}

/// Lets a kernel for sm_90 and newer that waits by itself for those before it (ptx/dependent_launch.cuh) start early,
/// where its code does wait. The one place that asks for it. `config.attrs` has room for one more.
[[maybe_unused]] static void allow_early_start(cudaLaunchConfig_t* config) {
  if (!has_sm90_code() || !can_launch_dependents()) return;
  cudaLaunchAttribute& attribute = config->attrs[config->numAttrs++];
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
}

/// Launches one cluster of (1, cluster, 1) blocks after another. `dependent`: allow_early_start.
template <class Params>
static cudaError_t launch(void (*kernel)(Params), dim3 grid, int threads, int smem_bytes, unsigned cluster,
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

}  // namespace hgemm::tile
