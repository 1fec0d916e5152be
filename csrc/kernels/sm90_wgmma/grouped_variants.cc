// The list of grouped kernels, for the dispatcher.
#include <array>
#include <iterator>
#include <tuple>

#include "kernels/sm90_wgmma/grouped_list.h"
#include "kernels/variants.h"

namespace hgemm {
namespace {

template <class Config>
constexpr GroupedKernel kernel_of(const char* name) {
  GroupedKernel kernel{.name = name, .divided = Divided::kInner, .max_groups = Config::kMaxGroups};
  kernel.columns = Config::BN * Config::CN;
  if constexpr (Config::kGrouped) {
    kernel.divided = Divided::kRows;
    kernel.columns = Config::kTileColumns;
  }
  return kernel;
}

template <class... Kernels>
constexpr std::array<GroupedKernel, sizeof...(Kernels)> list_of(const std::tuple<Kernels...>&) {
  static_assert(sizeof...(Kernels) == std::size(sm90_wgmma::grouped::kNames));
  const char* const* name = sm90_wgmma::grouped::kNames;
  return {kernel_of<typename Kernels::Config>(*name++)...};
}

constexpr auto kList = list_of(sm90_wgmma::grouped::kKernels);

}  // namespace

const GroupedKernelList kSm90GroupedKernels{kList.data(), static_cast<int>(kList.size())};

}  // namespace hgemm
