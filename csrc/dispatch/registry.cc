#include "dispatch/registry.h"

#include <cstring>
#include <stdexcept>

#include "kernels/variants.h"

namespace hgemm {
namespace detail {

const Variant* variants[kMaxVariants];

}  // namespace detail

namespace {

/// A list of kernels that another library added.
struct Added {
  int first_id;
  const char* family;
};

/// Appends a list to detail::variants, which has `count` kernels. Returns how many it then has.
int append(int count, const VariantList& list) {
  if (count + list.count > kMaxVariants) throw std::length_error("hgemm: more variants than kMaxVariants");
  for (int i = 0; i < list.count; ++i) detail::variants[count++] = &list.variants[i];
  return count;
}

/// The number of kernels. The families' lists are appended when the library is loaded.
int count = [] {
  int all = 0;
  for (const VariantList& list :
       {kSm80MmaVariants, kSm90WgmmaVariants, kSkinnyVariants, kSm90SkinnyVariants, kGemvVariants, kBatchedMmaVariants,
        kSm90SplitVariants, kSimtSkinnyVariants, kSm80SplitVariants, kSimtGemvVariants, kTinyBatchVariants,
        kSm90WgmmaInt8Variants, kSm90SkinnyInt8Variants, kSm90SplitSkinnyVariants, kSm90DmmaVariants,
        kBatchedGemvVariants}) {
    all = append(all, list);
  }
  return all;
}();

std::vector<Added>& added() {
  static std::vector<Added> lists;
  return lists;
}

}  // namespace

int variant_count() {
  return count;
}

void add_variants(const Variant* variants, int count, const char* family) {
  const int first_id = variant_count();
  hgemm::count = append(first_id, {variants, count});
  added().push_back({first_id, family});
}

const std::vector<int>& automatic_variants() {
  static const std::vector<int> ids = [] {
    std::vector<int> out;
    for (int id = 0; id < variant_count(); ++id) {
      if (variant(id).family != Family::kAdded && variant(id).arithmetic != Arithmetic::kAccumulateF16)
        out.push_back(id);
    }
    return out;
  }();
  return ids;
}

int find_variant(const char* name) {
  if (std::strcmp(name, "auto") == 0) return kAuto;
  if (std::strcmp(name, "torch") == 0) return kTorch;
  for (int id = 0; id < variant_count(); ++id) {
    if (std::strcmp(variant(id).name, name) == 0) return id;
  }
  return kUnknownVariant;
}

const char* variant_name(int id) {
  if (id == kAuto) return "auto";
  if (id == kTorch) return "torch";
  return id >= 0 && id < variant_count() ? variant(id).name : "unknown";
}

const char* family_name(Family family) {
  switch (family) {
    case Family::kAdded: return "added";
    case Family::kSm80Mma: return "sm80_mma";
    case Family::kSm90Wgmma: return "sm90_wgmma";
    case Family::kSkinny: return "skinny";
    case Family::kSm90Skinny: return "sm90_skinny";
    case Family::kGemv: return "gemv";
    case Family::kBatchedMma: return "batched_mma";
    case Family::kSm90Split: return "sm90_split";
    case Family::kSm90SplitSkinny: return "sm90_split_skinny";
    case Family::kSm90Dmma: return "sm90_dmma";
    case Family::kSm80Split: return "sm80_split";
    case Family::kSimtSkinny: return "simt_skinny";
    case Family::kSimtGemv: return "simt_gemv";
    case Family::kTinyBatch: return "tiny_batch";
    case Family::kBatchedGemv: return "batched_gemv";
    case Family::kInt8: return "int8";
  }
  return "unknown";
}

const char* family_name(int id) {
  const char* name = family_name(variant(id).family);
  for (const Added& list : added()) {
    if (id >= list.first_id) name = list.family;
  }
  return name;
}

}  // namespace hgemm
