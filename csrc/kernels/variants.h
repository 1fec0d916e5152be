// The lists of kernels, one per family. Each list is filled by the family's launch file.
#pragma once

#include "core/problem.h"

namespace hgemm {

extern const Variant kSm80MmaVariants[];
extern const int kSm80MmaVariantCount;

extern const Variant kSm90WgmmaVariants[];
extern const int kSm90WgmmaVariantCount;
/// Of the same family: stream-K.
extern const Variant kSm90StreamKVariants[];
extern const int kSm90StreamKVariantCount;

extern const Variant kSkinnyVariants[];
extern const int kSkinnyVariantCount;

extern const Variant kSm90SkinnyVariants[];
extern const int kSm90SkinnyVariantCount;

extern const Variant kGemvVariants[];
extern const int kGemvVariantCount;

extern const Variant kSimtSkinnyVariants[];
extern const int kSimtSkinnyVariantCount;

extern const Variant kSimtGemvVariants[];
extern const int kSimtGemvVariantCount;

extern const Variant kSm90SplitVariants[];
extern const int kSm90SplitVariantCount;

extern const Variant kSm80SplitVariants[];
extern const int kSm80SplitVariantCount;

extern const Variant kBatchedMmaVariants[];
extern const int kBatchedMmaVariantCount;

}  // namespace hgemm
