// Operands of int8 products, D = A @ B with int32 sums, and how kernels take them.
//
// wgmma takes int8 operands in K-major order alone, and TMA takes rows that start at multiples of 16 bytes. An operand
// that is neither is first copied to the workspace. Kernels see a product whose operands are all of that kind, counted
// in pairs: two int8 elements that are adjacent along K are one element of 16 bits. So tiles, tensor maps and shared
// memory are those of the 16-bit kernels.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "core/chip.h"
#include "core/problem.h"
#include "core/variant_list.h"
#include "tile/slabs.h"

namespace hgemm::tile {

/// What a kernel reads instead of an operand: nothing else, a copy with aligned rows, or the transpose.
enum class Int8Copy { kNone, kPad, kTranspose };

struct Int8Copies {
  Int8Copy a, b;
};

/// `transposes_b`: the kernel reads a row-major B in place.
Int8Copies int8_copies_of(const Problem& p, bool transposes_b);

/// The bytes of the copies.
class Int8Bytes final : public CopiedBytes {
 public:
  explicit Int8Bytes(const Int8Copies& copies) : copies_(copies) {}
  size_t a(const Problem& p) const override;
  size_t b(const Problem& p) const override;

 private:
  Int8Copies copies_;
};

/// Returns true if int8 kernels can run the product, with copies or without; otherwise refuses.
bool takes_int8(const Problem& p, Reason* why);

/// The time of the copies, in microseconds.
double int8_copies_us(const Problem& p, const DeviceFacts& facts, const Int8Copies& copies);

/// Fills the copies that `changed` names, behind one another from `workspace` on. Returns a cudaError_t.
Status launch_int8_copies(const Problem& p, const DeviceFacts& facts, const Int8Copies& copies, const Slabs& slabs,
                          const Changed& changed, void* workspace, Stream stream);

/// The product that the kernel is to compute, counted in pairs, once the copies are made. Without `workspace`, the
/// addresses of copies are null. A row-major B that is not copied keeps its order: its row stride counts the 16-bit
/// elements from one k, not from one pair, to the next.
Problem int8_pairs(const Problem& p, const Int8Copies& copies, const Slabs* slabs, void* workspace);

/// The functions of a Variant for one int8 kernel. `Kernel` has these members, of which the functions get a product
/// that is counted in pairs:
///
///   kTileM, kTileN        rows and columns of D that a cluster, or a block without one, computes at a time
///   kTransposesB          it reads a row-major B in place, and takes no other
///   takes(p, why)         whether the kernel can run the product, as far as it differs from other int8 kernels
///   at_once(facts)        work tiles that run at the same time
///   predict_us(p, facts)  the time without copies, in microseconds
///   launch(p, facts, stream)
template <class Kernel>
struct Int8Functions {
  static Int8Copies copies(const Problem& p) { return int8_copies_of(p, Kernel::kTransposesB); }
  static double kernel_us(const Problem& p, const DeviceFacts& facts) {
    return Kernel::predict_us(int8_pairs(p, copies(p), nullptr, nullptr), facts);
  }
  static Slabs slabs(const Problem& p, const DeviceFacts& facts) {
    constexpr double kLaunchUs = 3;
    return fewest_slabs(p, static_cast<size_t>(p.most_workspace), Int8Bytes(copies(p)), [&] {
      return SlabCost{.tile_m = Kernel::kTileM,
                      .tile_n = Kernel::kTileN,
                      .at_once = Kernel::at_once(facts),
                      .gemm_us = kernel_us(p, facts),
                      .us_per_byte = 2 / (1e3 * dram_gbs(facts)),
                      .launch_us = kLaunchUs};
    });
  }
  static bool eligible(const Problem& p, const DeviceFacts& facts, Reason* why) {
    if (!is_built_for_sm90a(why) || !takes_int8(p, why)) return false;
    if (Kernel::kTransposesB && (p.b_major() == Major::kK || copies(p).b != Int8Copy::kNone)) {
      return refuse(why, "%s", "B must be row-major with rows at multiples of 16 bytes");
    }
    return Kernel::takes(int8_pairs(p, copies(p), nullptr, nullptr), why) && fit_workspace(slabs(p, facts), p, why);
  }
  static size_t workspace(const Problem& p, const DeviceFacts& facts) { return slabs(p, facts).workspace(); }
  static double predict_us(const Problem& p, const DeviceFacts& facts) {
    return kernel_us(p, facts) + int8_copies_us(p, facts, copies(p)) + slabs(p, facts).extra_us;
  }
  static Status launch(const Problem& p, const DeviceFacts& facts, void* workspace, Stream stream) {
    const Slabs all = slabs(p, facts);
    return for_each_slab(p, all, [&](const Problem& part, const Changed& changed) -> Status {
      if (const Status e = launch_int8_copies(part, facts, copies(part), all, changed, workspace, stream)) return e;
      return Kernel::launch(int8_pairs(part, copies(part), &all, workspace), facts, stream);
    });
  }
};

/// The Variant of an int8 kernel.
template <class Kernel>
constexpr Variant int8_variant(const Name& name, const Tile& tile, int smem_bytes, const Cut& cut) {
  using Functions = Int8Functions<Kernel>;
  return {
      .name = name.text,
      .family = Family::kInt8,
      .arithmetic = Arithmetic::kInt8,
      .min_cc = kHopper,
      .max_cc = kHopper,
      .dtypes = 1u << static_cast<int>(DType::kI8),
      .tile = tile,
      .smem_bytes = smem_bytes,
      .splits_k = false,
      .eligible = Functions::eligible,
      .workspace = Functions::workspace,
      .predict_us = Functions::predict_us,
      .launch = Functions::launch,
      .cut = cut,
  };
}

}  // namespace hgemm::tile
