// Problems in words. Apart from core/problem.h, which device code includes and which needs no <string>.
#pragma once

#include <string>

#include "core/problem.h"

namespace hgemm {

/// "float16 NT 4096x4096x4096" with batch, alignment, epilogue where they are not the ordinary ones.
std::string describe(const Problem& problem);

}  // namespace hgemm
