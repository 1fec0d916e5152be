// Every kernel under one numbering: the families' lists, one after the other, and the ladder's where it is loaded.
#pragma once

#include <vector>

#include "core/problem.h"

namespace hgemm {

/// The lists together are not longer: lets decisions keep their scratch on the stack.
constexpr int kMaxVariants = 255;

/// Returned by find_variant for a name that no kernel has.
constexpr int kUnknownVariant = -3;

int variant_count();

/// Appends a list, the ladder's. Before the first decision; ids of what is there stay.
void add_variants(const Variant* variants, int count);

/// Requires 0 <= id < variant_count().
const Variant& variant(int id);

/// The variants that kAuto chooses among: every production kernel with fp32 accumulation. The ladder, and half
/// accumulation, only run when they are asked for.
const std::vector<int>& automatic_variants();

/// The id of a name. "auto" is kAuto, "torch" is kTorch; kUnknownVariant when nothing has that name.
int find_variant(const char* name);

/// The name of an id, "auto" and "torch" included.
const char* variant_name(int id);

const char* family_name(Family family);

}  // namespace hgemm
