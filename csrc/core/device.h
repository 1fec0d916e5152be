// What the host rooms may ask of CUDA without its headers. Implemented in kernels/device.cu.
#pragma once

#include <string>

#include "core/problem.h"

namespace hgemm {

/// Reads a device's attributes once and hands out the copy afterwards (no CUDA call, no lock). Thread-safe.
/// Returns a cudaError_t; 0 is success.
HGEMM_IN_CUDA(query_device_facts(int ordinal, DeviceFacts* facts))

/// What CUDA says when asked for a kernel of this library on a device: 0 where it could be launched.
HGEMM_IN_CUDA(load_a_kernel(int ordinal))

// Values of cudaError_t.
constexpr Status kInsufficientDriver = 35, kNoKernelImage = 209, kUnsupportedPtx = 222;

#ifdef HGEMM_NO_DEVICE_CODE
inline std::string cuda_version() {
  return "";
}
inline const char* status_string(Status) {
  return "built without device code (HGEMM_CUDA_ARCHS=none)";
}
#else
/// The toolkit that this library was built with, as "13.0".
std::string cuda_version();

/// The CUDA runtime's text for a status.
const char* status_string(Status status);
#endif

}  // namespace hgemm
