// What this build can run on: the architectures that it was compiled for, and the devices that are there.
#pragma once

#include <string>
#include <vector>

#include "core/problem.h"

namespace hgemm {

/// HGEMM_CUDA_ARCHS of this build, as "80 90 90a"; empty in a build without kernels, which decides as if it had all.
const char* built_archs();

/// The two kinds of architectures in such a list: kernels are compiled for the first, and for the second, which have a
/// letter, those of one architecture alone, or all where there is no other.
struct Archs {
  std::vector<int> portable, own;
};
Archs archs_of(const char* text);

/// Whether what serves any architecture was compiled for this one: as machine code of an older device of the same
/// generation, or as PTX of the newest architecture without a letter. An empty list stands for all.
bool has_code(const Archs& archs, int cc);

/// The same of this build.
bool is_built_for(int cc);

/// Why nothing of a build for `archs` runs on a device, and what to do about it; "" where something does. `status`:
/// what CUDA answered when asked for the device's attributes, in which case `cc` is 0, or for one kernel of this
/// library.
std::string device_fault(const char* archs, int cc, Status status);

/// The facts of a device that this build runs on, else null. What a device lacks is found out once, and logged (see
/// set_warning) when first asked for.
const DeviceFacts* usable_device(int ordinal);

/// device_fault() of a device, without logging it.
const std::string& fault_of_device(int ordinal);

/// Called with one line of text, on the thread that found something wrong; null turns it off.
void set_warning(void (*warn)(const char* line));

}  // namespace hgemm
