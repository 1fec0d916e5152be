// The lists of variants, one for each family. A family's variants.cc defines its list. dispatch/registry.cc gives every
// variant its id.
#pragma once

#include <array>
#include <cstddef>

#include "core/grouped.h"
#include "core/problem.h"

namespace hgemm {

/// An array of variants, which it does not own: static data of the family.
struct VariantList {
  constexpr VariantList(const Variant* variants, int count) : variants(variants), count(count) {}
  template <size_t kCount>
  constexpr VariantList(const std::array<Variant, kCount>& array) : variants(array.data()), count(kCount) {}

  const Variant* variants;
  int count;
};

extern const VariantList kSm80MmaVariants;
extern const VariantList kSm90WgmmaVariants;
extern const VariantList kSkinnyVariants;
extern const VariantList kSm90SkinnyVariants;
extern const VariantList kGemvVariants;
extern const VariantList kSimtSkinnyVariants;
extern const VariantList kSimtGemvVariants;
extern const VariantList kSm90SplitVariants;
extern const VariantList kSm90SplitSkinnyVariants;
extern const VariantList kSm80SplitVariants;
extern const VariantList kSm90DmmaVariants;
extern const VariantList kBatchedMmaVariants;
extern const VariantList kTinyBatchVariants;
extern const VariantList kBatchedGemvVariants;
extern const VariantList kSm90WgmmaInt8Variants;
extern const VariantList kSm90SkinnyInt8Variants;

/// An array of kernels of grouped products. They are no variants, because a Problem does not describe such a product:
/// dispatch/grouped.cc chooses among them.
struct GroupedKernelList {
  const GroupedKernel* kernels;
  int count;
};

extern const GroupedKernelList kSm90GroupedKernels;
extern const GroupedKernelList kSm80GroupedKernels;
extern const GroupedKernelList kSimtGroupedKernels;

// Enqueue the kernel `index` of these lists, and return a cudaError_t.
HGEMM_IN_CUDA(launch_sm90_grouped(int index, const GroupedProduct& grouped, const DeviceFacts& facts, Stream stream))
HGEMM_IN_CUDA(launch_sm80_grouped(int index, const GroupedProduct& grouped, Stream stream))
HGEMM_IN_CUDA(launch_simt_grouped(int index, const GroupedProduct& grouped, Stream stream))

}  // namespace hgemm
