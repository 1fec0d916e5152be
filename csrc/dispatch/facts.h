// Facts of known chips, so that decisions can be made and tested for devices that are not in the machine.
#pragma once

#include "core/problem.h"

namespace hgemm {

/// The facts of the chip that stands for a compute capability: 80 A100, 86 A10, 89 L40S, 90 H200, 100 B200.
/// Returns false, leaving `facts` alone, for any other.
bool preset_facts(int cc, DeviceFacts* facts);

}  // namespace hgemm
