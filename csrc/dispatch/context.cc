#include "dispatch/context.h"

#include <utility>

namespace hgemm::detail {

thread_local HgemmSettings thread_settings = kNoSettings;
std::atomic<HgemmSettings> shared_settings{kNoSettings};
std::atomic<int> default_tunes{0};
thread_local int thread_site = 0;
std::atomic<bool> sites_on{false};

}  // namespace hgemm::detail

void hgemm_context_set(HgemmSettings own, HgemmSettings shared) {
  hgemm::detail::thread_settings = own;
  hgemm::detail::shared_settings.store(shared, std::memory_order_relaxed);
}

void hgemm_context_leave_all(void) {
  hgemm::detail::thread_settings = hgemm::kNoSettings;
  hgemm::detail::thread_settings.variant = hgemm::kOutside;
  hgemm::detail::thread_settings.tunes = 0;
}

void hgemm_tuning_default(int tunes) {
  hgemm::detail::default_tunes.store(tunes, std::memory_order_relaxed);
}

void hgemm_sites_enable(int on) {
  hgemm::detail::sites_on.store(on != 0, std::memory_order_relaxed);
}

int hgemm_site_set(int site) {
  return std::exchange(hgemm::detail::thread_site, site);
}
