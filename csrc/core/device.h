// Queries of the CUDA runtime for host code that does not include CUDA's headers. Implemented in kernels/device.cu.
// Every .cu file includes this one, so it has no <string>, which takes nvcc half a second.
#pragma once

#include "core/problem.h"

namespace hgemm {

/// Fills `facts` with the attributes of the device with this CUDA ordinal. The first call for a device reads them;
/// later calls return the copy, without a CUDA call or a lock. Thread-safe. Returns a cudaError_t; 0 is success, and
/// otherwise `facts` stays as it is.
HGEMM_IN_CUDA(query_device_facts(int ordinal, DeviceFacts* facts))

/// Loads an empty kernel of this library on the device with this CUDA ordinal, without launching it. Returns 0 if
/// kernels of this build can run there, else the cudaError_t of the attempt. Allowed while a stream is being captured.
/// The calling thread's current context stays as it is. The functions below know a device's primary context, which the
/// CUDA runtime and torch use, from this call.
HGEMM_IN_CUDA(load_a_kernel(int ordinal))

/// Makes the primary context of the thread's device current if the thread has no context yet. A context that is current
/// stays: it may be a green one (a part of a device's SMs), or one that another library created.
HGEMM_IN_CUDA(ensure_context())

// Values of cudaError_t: the driver is older than the toolkit; no code for the device; PTX newer than the driver.
constexpr Status kInsufficientDriver = 35, kNoKernelImage = 209, kUnsupportedPtx = 222;

#ifdef HGEMM_NO_DEVICE_CODE
inline int cuda_version() {
  return 0;
}
inline int sms_of(Stream, int, int all) {
  return all;
}
inline int current_primary() {
  return -1;
}
inline const char* status_string(Status) {
  return "built without device code (HGEMM_CUDA_ARCHS=none)";
}
#else
/// CUDART_VERSION of the CUDA toolkit that this library was built with: 13000 for CUDA 13.0.
int cuda_version();

/// The number of SMs that kernels on `stream`, a stream of the device with this CUDA ordinal, may run on. It is less
/// than `all`, the number of the device's SMs, where the stream belongs to a green context.
int sms_of(Stream stream, int ordinal, int all);

/// The CUDA ordinal of the device whose primary context is current, or -1: no context is, or one that is not known to
/// be primary.
int current_primary();

/// The CUDA runtime's description of a cudaError_t.
const char* status_string(Status status);
#endif

}  // namespace hgemm
