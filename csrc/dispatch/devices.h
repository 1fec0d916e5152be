// The devices that this build can run on: which architectures it was compiled for, and which devices the machine has.
#pragma once

#include <string>
#include <vector>

#include "core/problem.h"

namespace hgemm {

/// HGEMM_CUDA_ARCHS of this build, such as "80 90 90a". It is empty in a build without kernels, which decides as if it
/// had been built for every architecture.
const char* built_archs();

/// The two kinds of architectures in such a list. Kernels that run on any architecture are compiled for `portable`.
/// Architectures with a letter (90a) are `own`: only the kernels of that one architecture are compiled for them, or all
/// kernels where the list has no portable architecture.
struct Archs {
  std::vector<int> portable, own;
};
Archs archs_of(const char* text);

/// Whether the kernels that run on any architecture have code for compute capability `cc`: machine code for it or for
/// an older device of the same generation, or PTX, which is there for the newest portable architecture. An empty list
/// means every architecture.
bool has_code(const Archs& archs, int cc);

/// has_code() of this build.
bool is_built_for(int cc);

/// The reason why a build for `archs` cannot run on a device, and what to do about it; "" where it can. `status` is the
/// cudaError_t of the query for the device's attributes, and `cc` is 0 where that failed; or else of the attempt to
/// load one kernel of this library.
std::string device_fault(const char* archs, int cc, Status status);

/// The facts of a device if this build can run on it, else null. A device is examined once. If this build cannot run on
/// it, the first call says so through set_warning()'s function.
const DeviceFacts* usable_device(int ordinal);

/// device_fault() of this build for a device, without a warning.
const std::string& fault_of_device(int ordinal);

/// Sets the function for warnings. It is called with one line of text, on the thread that uses the device. Null turns
/// it off.
void set_warning(void (*warn)(const char* line));

}  // namespace hgemm
