// Padded copies of operands whose rows do not start on 16 bytes, so that kernels with wide copies can serve them.
#pragma once

#include "core/problem.h"

namespace hgemm {

/// Bytes for the padded copies of A (if `pad_a`) and B (if `pad_b`): rows rounded up to whole 16-byte chunks, long ones
/// to 128-byte lines. A batch dimension that broadcasts is copied once.
size_t padded_bytes(const Problem& p, bool pad_a, bool pad_b);

/// The same problem with those operands in `workspace`, in their own memory order.
Problem padded_problem(const Problem& p, bool pad_a, bool pad_b, void* workspace);

/// Fills the copies; the elements between a row's end and its last chunk's end become zeros. `overlap`: the device has
/// programmatic dependent launch (sm_90 on), and the copy may start while its predecessor drains.
Status launch_pad(const Problem& p, bool pad_a, bool pad_b, void* workspace, bool overlap, Stream stream);

}  // namespace hgemm
