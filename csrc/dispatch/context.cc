#include "dispatch/context.h"

namespace hgemm::detail {

thread_local int thread_setting = kNoContext;
thread_local int thread_numerics = kAuto;
thread_local int thread_float32 = kAuto;
thread_local int thread_site = 0;
std::atomic<int> shared_setting{kNoContext};
thread_local int thread_tunes = -1;
std::atomic<int> shared_numerics{kAuto};
std::atomic<int> shared_float32{kAuto};
std::atomic<int> shared_tunes{-1};
std::atomic<int> default_tunes{0};
std::atomic<bool> sites_on{false};

}  // namespace hgemm::detail
