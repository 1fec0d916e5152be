// What the host rooms may ask of CUDA without its headers. Implemented in kernels/device.cu.
#pragma once

#include "core/problem.h"

namespace hgemm {

/// Reads a device's attributes once and hands out the copy afterwards (no CUDA call, no lock). Thread-safe.
/// Returns a cudaError_t; 0 is success.
HGEMM_IN_CUDA(query_device_facts(int ordinal, DeviceFacts* facts))

/// The CUDA runtime's text for a status.
#ifdef HGEMM_NO_DEVICE_CODE
inline const char* status_string(Status) {
  return "built without device code (HGEMM_CUDA_ARCHS=none)";
}
#else
const char* status_string(Status status);
#endif

}  // namespace hgemm
