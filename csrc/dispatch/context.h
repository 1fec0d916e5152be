// What use_custom_gemm() asks for: settings of this thread, and those for the threads that have entered no context.
#pragma once

#include <atomic>

#include "core/problem.h"
#include "dispatch/c_api.h"

namespace hgemm {

/// HgemmSettings::variant: no context holds.
constexpr int kNoContext = -4;
/// The same of a thread's own, whatever others have entered.
constexpr int kOutside = -5;
constexpr HgemmSettings kNoSettings = {
    .variant = kNoContext, .numerics = kAuto, .float32 = kAuto, .tunes = kAuto, .reserved = 0};

/// The site of products that autograd computes; 0 is none.
constexpr int kBackwardSite = 1;

namespace detail {
extern thread_local HgemmSettings thread_settings;
extern std::atomic<HgemmSettings> shared_settings;
extern std::atomic<int> default_tunes;
extern thread_local int thread_site;
extern std::atomic<bool> sites_on;
static_assert(std::atomic<HgemmSettings>::is_always_lock_free);
}  // namespace detail

/// What holds on this thread. numerics and float32: a NumericsMode or a Float32Mode, or kAuto where no context says
/// anything of it; tunes: 0 or 1.
inline HgemmSettings context_settings() {
  HgemmSettings settings = detail::thread_settings;
  if (settings.variant == kNoContext) settings = detail::shared_settings.load(std::memory_order_relaxed);
  if (settings.variant == kOutside) settings.variant = kNoContext;
  if (settings.tunes == kAuto) {
    settings.tunes = static_cast<int8_t>(detail::default_tunes.load(std::memory_order_relaxed));
  }
  return settings;
}

inline bool context_holds() {
  int variant = detail::thread_settings.variant;
  if (variant == kNoContext) variant = detail::shared_settings.load(std::memory_order_relaxed).variant;
  return variant != kNoContext && variant != kOutside;
}

/// Where a product belongs, while somebody wants to know.
inline int current_site(bool in_backward) {
  if (!detail::sites_on.load(std::memory_order_relaxed)) return 0;
  const int site = detail::thread_site;
  return site == 0 && in_backward ? kBackwardSite : site;
}

}  // namespace hgemm
