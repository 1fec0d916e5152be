// Padded copies of operands whose rows do not start on 16 bytes, so that kernels with wide copies can serve them.
#pragma once

#include "core/problem.h"

namespace hgemm {

/// What to copy.
struct Pads {
  bool a, b;
  /// Not 0: the kernel reads an MN-major B in tiles of that many columns, a multiple of 8, each of which is to start on
  /// a line of 128 bytes.
  int32_t b_tile = 0;
};

/// Columns from where one tile of B starts to where the next does, in a copy with that `b_tile`.
constexpr int pitch_of(int b_tile) {
  return (b_tile + 63) / 64 * 64;
}

/// Bytes for the padded copies: rows rounded up to whole 16-byte chunks, long ones to 128-byte lines. A batch dimension
/// that broadcasts is copied once.
size_t padded_bytes(const Problem& p, const Pads& pads);

/// The same problem with those operands in `workspace`, in their own memory order.
Problem padded_problem(const Problem& p, const Pads& pads, void* workspace);

/// Fills the copies; the elements between a row's end and its last chunk's end become zeros, those between tiles of B
/// are left as they are. With programmatic dependent launch (sm_90 on) it starts while its predecessor drains.
HGEMM_IN_CUDA(launch_pad(const Problem& p, const DeviceFacts& facts, const Pads& pads, void* workspace, Stream stream))

}  // namespace hgemm
