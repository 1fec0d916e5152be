// A text for a problem. It is apart from core/problem.h because device code includes that header and needs no <string>.
#pragma once

#include <string>

#include "core/problem.h"

namespace hgemm {

/// Returns a text such as "float16 NT 4096x4096x4096": dtype, layout_name() and M x N x K. Batch size, alignment,
/// epilogue and output dtype are added where they differ from one aligned matmul: "float16 NT 8x64x64x64 + bias gelu".
std::string describe(const Problem& problem);

}  // namespace hgemm
