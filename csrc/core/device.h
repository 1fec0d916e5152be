// What the host rooms may ask of CUDA without its headers. Implemented in kernels/device.cu.
#pragma once

#include "core/problem.h"

namespace hgemm {

/// Reads a device's attributes once and hands out the copy afterwards (no CUDA call, no lock). Thread-safe.
/// Returns a cudaError_t; 0 is success.
Status query_device_facts(int ordinal, DeviceFacts* facts);

/// Devices the CUDA runtime can see; 0 where there is no driver.
int device_count();

/// The CUDA runtime's text for a status.
const char* status_string(Status status);

}  // namespace hgemm
