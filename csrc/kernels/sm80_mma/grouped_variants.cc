// The list of grouped kernels by mma.sync, for the dispatcher.
#include "core/grouped_list.h"
#include "kernels/sm80_mma/grouped_list.h"
#include "kernels/variants.h"

namespace hgemm {
namespace {

template <class Config>
constexpr GroupedKernel kernel_of(const char* name) {
  return {.name = name,
          .min_cc = kAmpere,
          .max_cc = kAnyNewer,
          .dtypes = kHalfTypes,
          .forms = kEveryForm,
          .max_groups = kAnyGroups,
          .rows = Config::BM,
          .columns = Config::BN,
          .blocks = 1,
          .finishes = false,
          .gates = false,
          .takes = Config::kUnaligned == sm80_mma::Unaligned::kNarrow ? GroupedKernel::Takes::kAny
                                                                      : GroupedKernel::Takes::kWhole};
}

constexpr auto kList = list_of_grouped(sm80_mma::grouped::kKernels, sm80_mma::grouped::kNames,
                                       []<class Config>(const char* name) { return kernel_of<Config>(name); });

}  // namespace

const GroupedKernelList kSm80GroupedKernels{kList.data(), static_cast<int>(kList.size())};

}  // namespace hgemm
