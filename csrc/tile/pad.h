// Padded copies of operands whose rows do not start on 16 bytes, so that kernels with 16-byte copies can run on them.
#pragma once

#include "core/problem.h"
#include "tile/slabs.h"

namespace hgemm {

/// The operands to copy.
struct Pads {
  bool a, b;
  /// If not 0, the kernel reads an MN-major B in tiles of this many columns, a multiple of 8, and each tile must start
  /// on a line of 128 bytes.
  int32_t b_tile = 0;
};

/// The distance between the starts of two tiles of B, in columns, in a copy with this `b_tile`.
constexpr int pitch_of(int b_tile) {
  return (b_tile + 63) / 64 * 64;
}

/// The bytes of the padded copies. Rows are rounded up to whole 16-byte chunks, long rows to 128-byte lines. A batch
/// dimension along which the operand is broadcast is copied once.
class PaddedBytes final : public tile::CopiedBytes {
 public:
  explicit PaddedBytes(const Pads& pads) : pads_(pads) {}
  size_t a(const Problem& p) const override;
  size_t b(const Problem& p) const override;

 private:
  Pads pads_;
};

/// Where the copies are: addresses on 16 bytes.
struct PadMemory {
  void *a, *b;
};

inline PadMemory pad_memory(const tile::Slabs& slabs, void* workspace) {
  return {workspace, static_cast<unsigned char*>(workspace) + slabs.a_bytes};
}

/// Returns the problem with the padded operands replaced by their copies, which keep the operand's memory order.
Problem padded_problem(const Problem& p, const Pads& pads, const PadMemory& memory);

/// Fills the copies, or those that `changed` says. The elements between the end of a row and the end of its last chunk
/// become zeros; those between two tiles of B are not written. With programmatic dependent launch (from sm_90 on) the
/// kernel starts while its predecessor drains.
HGEMM_IN_CUDA(launch_pad(const Problem& p, const DeviceFacts& facts, const Pads& pads, const tile::Changed& changed,
                         const PadMemory& memory, Stream stream))

}  // namespace hgemm
