// Transposed copies of matrices of bytes.
#pragma once

#include <cstdint>

#include "core/problem.h"

namespace hgemm::tile {

/// A row-major matrix of bytes and where its transpose goes. Pitches are in bytes. `from` and `from_pitch` are
/// multiples of 4, `to` and `to_pitch` are multiples of 16, and to_pitch is at least `rows`.
struct ByteTranspose {
  const void* from;
  int64_t from_pitch;
  void* to;
  int64_t to_pitch;
  int64_t rows, cols;  // of `from`
};

/// Writes the transpose: rows of `cols` become columns. Bytes between the end of a row of `to` and the next multiple of
/// 16 are undefined afterwards. With programmatic dependent launch (from sm_90 on) the kernel starts while its
/// predecessor drains.
HGEMM_IN_CUDA(launch_transpose(const ByteTranspose& matrix, const DeviceFacts& facts, Stream stream))

}  // namespace hgemm::tile
