// Tools that families use to build their lists of grouped kernels at compile time.
#pragma once

#include <array>
#include <cstddef>
#include <limits>
#include <tuple>

#include "core/grouped.h"
#include "core/variant_list.h"

namespace hgemm {

/// Values of GroupedKernel::forms and GroupedKernel::max_groups.
constexpr uint32_t kEveryForm = form_bit(Divided::kRows) | form_bit(Divided::kInner) | form_bit(Divided::kColumns);
constexpr int kAnyGroups = std::numeric_limits<int>::max();

/// The list of kernels for the lines of a list and their names: `make.operator()<Config>(name)` gives one of them.
template <class... Kernels, size_t kCount, class Make>
constexpr std::array<GroupedKernel, kCount> list_of_grouped(const std::tuple<Kernels...>&,
                                                            const char* const (&names)[kCount], Make make) {
  static_assert(sizeof...(Kernels) == kCount);
  const char* const* name = names;
  return {make.template operator()<typename Kernels::Config>(*name++)...};
}

}  // namespace hgemm
