// All kernels under one numbering: the families' lists, one after the other, and then the lists that other libraries
// add.
#pragma once

#include <vector>

#include "core/problem.h"

namespace hgemm {

/// The largest number of kernels. The limit lets decisions keep their working memory on the stack.
constexpr int kMaxVariants = 255;

/// Returned by find_variant for a name that no kernel has.
constexpr int kUnknownVariant = -3;

/// The number of kernels. Their ids are the integers below it.
int variant_count();

/// Appends the list of another library. Its kernels have Family::kAdded, for which `family` is the name. To be called
/// before the first decision; the ids of other kernels do not change. Neither the list nor the name is copied.
void add_variants(const Variant* variants, int count, const char* family);

namespace detail {
extern const Variant* variants[kMaxVariants];
}

/// The kernel with an id. Requires 0 <= id < variant_count().
inline const Variant& variant(int id) {
  return *detail::variants[id];
}

/// The ids that kAuto chooses among: the kernels of this library that do not accumulate in float16. Kernels that do,
/// and kernels that another library added, only run where they are named.
const std::vector<int>& automatic_variants();

/// The id of a name: kAuto for "auto", kTorch for "torch", and kUnknownVariant where no kernel has the name.
int find_variant(const char* name);

/// The name of an id: "auto" for kAuto, "torch" for kTorch, and "unknown" where there is no such kernel.
const char* variant_name(int id);

/// The name of a family; "added" for Family::kAdded.
const char* family_name(Family family);

/// The name of a kernel's family. For Family::kAdded it is the name that the kernel's library gave. Requires
/// 0 <= id < variant_count().
const char* family_name(int id);

}  // namespace hgemm
