#include "dispatch/registry.h"

#include <cstring>
#include <stdexcept>

#include "kernels/variants.h"
#include "ladder/variants.h"

namespace hgemm {
namespace {

struct List {
  const Variant* variants;
  int count;
  bool needs_measurement = false;
};

struct Listed {
  const Variant* variant;
  bool needs_measurement;
};

const std::vector<Listed>& all() {
  static const std::vector<Listed> variants = [] {
    const List lists[] = {
        {kSm80MmaVariants, kSm80MmaVariantCount},
        {kSm90WgmmaVariants, kSm90WgmmaVariantCount},
        {kSm90StreamKVariants, kSm90StreamKVariantCount, true},
        {kSkinnyVariants, kSkinnyVariantCount},
        {kSm90SkinnyVariants, kSm90SkinnyVariantCount},
        {kGemvVariants, kGemvVariantCount},
        {kBatchedMmaVariants, kBatchedMmaVariantCount},
        {kLadderVariants, kLadderVariantCount},
    };
    std::vector<Listed> out;
    for (const List& list : lists) {
      for (int i = 0; i < list.count; ++i) out.push_back({&list.variants[i], list.needs_measurement});
    }
    if (out.size() > kMaxVariants) throw std::length_error("hgemm: more variants than kMaxVariants");
    return out;
  }();
  return variants;
}

}  // namespace

int variant_count() {
  return static_cast<int>(all().size());
}

const Variant& variant(int id) {
  return *all()[static_cast<size_t>(id)].variant;
}

bool needs_measurement(int id) {
  return all()[static_cast<size_t>(id)].needs_measurement;
}

const std::vector<int>& automatic_variants() {
  static const std::vector<int> ids = [] {
    std::vector<int> out;
    for (int id = 0; id < variant_count(); ++id) {
      if (variant(id).family != Family::kLadder && variant(id).numerics == Numerics::kAccumulateF32) out.push_back(id);
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
    case Family::kLadder: return "ladder";
    case Family::kSm80Mma: return "sm80_mma";
    case Family::kSm90Wgmma: return "sm90_wgmma";
    case Family::kSkinny: return "skinny";
    case Family::kFp32: return "fp32";
    case Family::kGemv: return "gemv";
    case Family::kBatchedMma: return "batched_mma";
  }
  return "unknown";
}

const char* dtype_name(DType dtype) {
  switch (dtype) {
    case DType::kF16: return "float16";
    case DType::kBF16: return "bfloat16";
    case DType::kF32: return "float32";
    case DType::kF64: return "float64";
    case DType::kC64: return "complex64";
    case DType::kC128: return "complex128";
  }
  return "unknown";
}

}  // namespace hgemm
