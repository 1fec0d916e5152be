#include "tile/int8_operands.h"

#include "tile/pad.h"
#include "tile/transpose.h"

namespace hgemm::tile {
namespace {

/// The pitch of a transposed operand in bytes. Long rows start on whole 128-byte lines, which TMA reads faster.
int64_t pitch_of_rows(int64_t k) {
  const int64_t to = k >= 1024 ? 128 : 16;
  return (k + to - 1) / to * to;
}

Int8Copy copy_of(Major major, int alignment) {
  if (major == Major::kMN) return Int8Copy::kTranspose;
  return alignment == 16 ? Int8Copy::kNone : Int8Copy::kPad;
}

Pads pads_of(const Int8Copies& copies) {
  return {.a = copies.a == Int8Copy::kPad, .b = copies.b == Int8Copy::kPad};
}

PadMemory memory_of(const Slabs* slabs, void* workspace) {
  return slabs == nullptr ? PadMemory{nullptr, nullptr} : pad_memory(*slabs, workspace);
}

/// The product counted in pairs, with transposed operands replaced, but not yet the padded ones.
Problem pairs_of(const Problem& p, const Int8Copies& copies, const PadMemory& memory) {
  Problem pairs = p;
  if (copies.a == Int8Copy::kTranspose) pairs.a = {memory.a, pitch_of_rows(p.k), 1, {0, 0}};
  if (copies.b == Int8Copy::kTranspose) pairs.b = {memory.b, 1, pitch_of_rows(p.k), {0, 0}};
  pairs.k /= 2;
  pairs.a.row_stride /= 2;
  (pairs.b_major() == Major::kK ? pairs.b.col_stride : pairs.b.row_stride) /= 2;
  pairs.dtype = DType::kBF16;  // for the size of an element: nothing computes with a pair
  return pairs;
}

}  // namespace

Int8Copies int8_copies_of(const Problem& p, bool transposes_b) {
  const int alignment = alignment_b(p);
  const bool is_in_place = transposes_b && p.b_major() == Major::kMN && alignment == 16;
  return {copy_of(p.a_major(), alignment_a(p)), is_in_place ? Int8Copy::kNone : copy_of(p.b_major(), alignment)};
}

Problem int8_pairs(const Problem& p, const Int8Copies& copies, const Slabs* slabs, void* workspace) {
  const PadMemory memory = memory_of(slabs, workspace);
  return padded_problem(pairs_of(p, copies, memory), pads_of(copies), memory);
}

size_t Int8Bytes::a(const Problem& p) const {
  if (copies_.a == Int8Copy::kTranspose) return static_cast<size_t>(p.m * pitch_of_rows(p.k));
  const Problem pairs = pairs_of(p, copies_, {nullptr, nullptr});
  return PaddedBytes(pads_of(copies_)).a(pairs);
}

size_t Int8Bytes::b(const Problem& p) const {
  if (copies_.b == Int8Copy::kTranspose) return static_cast<size_t>(p.n * pitch_of_rows(p.k));
  const Problem pairs = pairs_of(p, copies_, {nullptr, nullptr});
  return PaddedBytes(pads_of(copies_)).b(pairs);
}

bool takes_int8(const Problem& p, Reason* why) {
  if (p.out_dtype != DType::kI32) return refuse(why, "the result must be int32, not %s", dtype_name(p.out_dtype));
  if (p.batches() != 1 || p.bias || p.c.data || p.pre_activation || p.act != Activation::kNone) {
    return refuse(why, "%s", "does not support batches, a bias, C or an activation");
  }
  constexpr int64_t kRefusedRows = 16;
  if (p.m <= kRefusedRows) {
    return refuse(why, "torch._int_mm takes more than 16 rows, got %lld", static_cast<long long>(p.m));
  }
  if (p.m > kMaxExtent || p.n > kMaxExtent) {
    return refuse(why, "M and N must be at most 2^30, got %lld and %lld", static_cast<long long>(p.m),
                  static_cast<long long>(p.n));
  }
  // With this K the sum of products of -128 and -128 is 2^31. Torch's kernels saturate such a sum.
  constexpr int64_t kOverflowing = int64_t{1} << 17;
  if (p.k >= kOverflowing) {
    return refuse(why, "K must be less than 2^17, so that no sum can overflow, got %lld", static_cast<long long>(p.k));
  }
  if (p.k == 0 || p.k % 8 != 0 || p.n % 8 != 0) {
    return refuse(why, "K and N must be multiples of 8, got %lld and %lld", static_cast<long long>(p.k),
                  static_cast<long long>(p.n));
  }
  if (alignment_d(p) < 16 || p.d.row_stride < p.n) return refuse(why, "%s", "rows of D must be 16-byte aligned");
  const bool ka = p.a_major() == Major::kK, kb = p.b_major() == Major::kK;
  if (p.lda() < (ka ? p.k : p.m) || p.ldb() < (kb ? p.k : p.n)) {
    return refuse(why, "%s", "rows of A and B must not overlap");
  }
  // So it is with cuBLAS, whose error the caller is to get.
  constexpr int kLeastAlignment = 4;
  if (alignment_a(p) < kLeastAlignment || alignment_b(p) < kLeastAlignment) {
    return refuse(why, "rows of A and B must be %d-byte aligned, got %d and %d", kLeastAlignment, alignment_a(p),
                  alignment_b(p));
  }
  return true;
}

double int8_copies_us(const Problem& p, const DeviceFacts& facts, const Int8Copies& copies) {
  constexpr double kCopyUs = 0.7;          // launch, measured on the H200
  constexpr double kShare = 0.9;           // of the read bandwidth that a copy reaches, measured there as well
  constexpr double kUnalignedShare = 0.4;  // an estimate for operands that are not 16-byte aligned
  const auto us = [&](Int8Copy copy, int64_t outer, int alignment) {
    if (copy == Int8Copy::kNone) return 0.0;
    const double bytes = 2 * static_cast<double>(outer) * static_cast<double>(p.k);
    return kCopyUs + bytes / (1e3 * dram_gbs(facts) * (alignment < 16 ? kUnalignedShare : kShare));
  };
  return us(copies.a, p.m, alignment_a(p)) + us(copies.b, p.n, alignment_b(p));
}

Status launch_int8_copies(const Problem& p, const DeviceFacts& facts, const Int8Copies& copies, const Slabs& slabs,
                          const Changed& changed, void* workspace, Stream stream) {
  const PadMemory memory = pad_memory(slabs, workspace);
  const auto transpose = [&](const Matrix& x, int64_t ld, int64_t outer, void* to) {
    return launch_transpose(
        {.from = x.data, .from_pitch = ld, .to = to, .to_pitch = pitch_of_rows(p.k), .rows = p.k, .cols = outer}, facts,
        stream);
  };
  if (copies.a == Int8Copy::kTranspose && changed.a) {
    if (const Status e = transpose(p.a, p.lda(), p.m, memory.a)) return e;
  }
  if (copies.b == Int8Copy::kTranspose && changed.b) {
    if (const Status e = transpose(p.b, p.ldb(), p.n, memory.b)) return e;
  }
  const Pads pads = pads_of(copies);
  return pads.a || pads.b ? launch_pad(pairs_of(p, copies, memory), facts, pads, changed, memory, stream) : 0;
}

}  // namespace hgemm::tile
