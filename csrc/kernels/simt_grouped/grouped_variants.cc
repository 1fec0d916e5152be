#include "core/grouped_list.h"
#include "kernels/simt_grouped/grouped_list.h"
#include "kernels/variants.h"

namespace hgemm {
namespace {

constexpr auto kList =
    list_of_grouped(simt_grouped::kKernels, simt_grouped::kNames, []<class Config>(const char* name) {
      return GroupedKernel{.name = name,
                           .min_cc = kAmpere,
                           .max_cc = kAnyNewer,
                           .dtypes = kFloat32,
                           .forms = kEveryForm,
                           .max_groups = kAnyGroups,
                           .rows = Config::BM,
                           .columns = Config::BN,
                           .blocks = 1,
                           .finishes = false,
                           .gates = false,
                           .takes = GroupedKernel::Takes::kAny};
    });

}  // namespace

const GroupedKernelList kSimtGroupedKernels{kList.data(), static_cast<int>(kList.size())};

}  // namespace hgemm
