// Functions of the CUDA driver, for .cu files. The library does not link libcuda, so that it loads without a driver.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

namespace hgemm {

/// Returns the driver's function `name` in the form that it has had since CUDA `version` (12040: 12.4), or null if the
/// driver is older. To be called once for each function.
template <class Function>
Function driver_function(const char* name, [[maybe_unused]] unsigned version) {
  void* entry = nullptr;
  cudaDriverEntryPointQueryResult found;
#if CUDART_VERSION >= 12050
  const cudaError_t e = cudaGetDriverEntryPointByVersion(name, &entry, version, cudaEnableDefault, &found);
#else
  const cudaError_t e = cudaGetDriverEntryPoint(name, &entry, cudaEnableDefault, &found);
#endif
  return e == cudaSuccess && found == cudaDriverEntryPointSuccess ? reinterpret_cast<Function>(entry) : nullptr;
}

}  // namespace hgemm
