// What the host rooms may ask of CUDA without its headers. Implemented in kernels/device.cu.
#pragma once

#include <string>

#include "core/problem.h"

namespace hgemm {

/// Reads a device's attributes once and hands out the copy afterwards (no CUDA call, no lock). Thread-safe.
/// Returns a cudaError_t; 0 is success.
Status query_device_facts(int ordinal, DeviceFacts* facts);

/// What CUDA says when asked for a kernel of this library on a device: 0 where it could be launched.
Status load_a_kernel(int ordinal);

// Values of cudaError_t.
constexpr Status kInsufficientDriver = 35, kNoKernelImage = 209, kUnsupportedPtx = 222;

/// The toolkit that this library was built with, as "13.0".
std::string cuda_version();

/// Devices the CUDA runtime can see; 0 where there is no driver.
int device_count();

/// The CUDA runtime's text for a status.
const char* status_string(Status status);

}  // namespace hgemm
