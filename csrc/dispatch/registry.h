// Every kernel under one numbering: the families' lists, one after the other, and then those that other libraries add.
#pragma once

#include <vector>

#include "core/problem.h"

namespace hgemm {

/// The lists together are not longer: lets decisions keep their scratch on the stack.
constexpr int kMaxVariants = 255;

/// Returned by find_variant for a name that no kernel has.
constexpr int kUnknownVariant = -3;

int variant_count();

/// Appends the list of another library, whose kernels have Family::kAdded and the name `family` for it. Before the
/// first decision; ids of what is there stay. The list and the name are not copied.
void add_variants(const Variant* variants, int count, const char* family);

/// Requires 0 <= id < variant_count().
const Variant& variant(int id);

/// The variants that kAuto chooses among: this library's with float32 accumulation. Those that another library added,
/// and half accumulation, only run when they are asked for.
const std::vector<int>& automatic_variants();

/// The id of a name. "auto" is kAuto, "torch" is kTorch; kUnknownVariant when nothing has that name.
int find_variant(const char* name);

/// The name of an id, "auto" and "torch" included.
const char* variant_name(int id);

const char* family_name(Family family);

/// The name of a variant's family, which for Family::kAdded is what its library calls it. Requires
/// 0 <= id < variant_count().
const char* family_name(int id);

}  // namespace hgemm
