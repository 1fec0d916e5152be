// The list of grouped kernels, for the dispatcher.
#include "core/grouped_list.h"
#include "kernels/sm90_wgmma/grouped_list.h"
#include "kernels/variants.h"

namespace hgemm {
namespace {

template <class Config>
constexpr GroupedKernel kernel_of(const char* name) {
  GroupedKernel kernel{.name = name,
                       .min_cc = kHopper,
                       .max_cc = kHopper,
                       .dtypes = kHalfTypes,
                       .forms = form_bit(Divided::kInner),
                       .max_groups = Config::kMaxGroups,
                       .rows = Config::BM * Config::CM,
                       .columns = Config::BN * Config::CN,
                       .blocks = Config::kCluster,
                       .finishes = Config::kGrouped,
                       .gates = false,
                       .takes = GroupedKernel::Takes::kTma};
  if constexpr (Config::kGrouped) {
    kernel.forms = form_bit(Divided::kRows);
    kernel.rows = Config::kGroupRows;
    kernel.columns = Config::kTileColumns;
    kernel.gates = Config::kGates;
  }
  return kernel;
}

constexpr auto kList = list_of_grouped(sm90_wgmma::grouped::kKernels, sm90_wgmma::grouped::kNames,
                                       []<class Config>(const char* name) { return kernel_of<Config>(name); });

}  // namespace

const GroupedKernelList kSm90GroupedKernels{kList.data(), static_cast<int>(kList.size())};

}  // namespace hgemm
