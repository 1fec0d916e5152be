// The settings that contexts of use_custom_gemm() and enable() ask for: those of this thread, and those that apply to
// threads without a context of their own. c_api.h says which contexts are active where.
#pragma once

#include <atomic>

#include "core/problem.h"
#include "dispatch/c_api.h"

namespace hgemm {

/// A value of HgemmSettings::variant: no context is active.
constexpr int kNoContext = -4;
/// A value of a thread's own HgemmSettings::variant: this thread is outside every context, whatever contexts other
/// threads have entered.
constexpr int kOutside = -5;
constexpr HgemmSettings kNoSettings = {
    .variant = kNoContext, .numerics = kAuto, .float32 = kAuto, .tunes = kAuto, .reserved = 0};

/// The site of calls that autograd's backward pass makes. Site 0 is none.
constexpr int kBackwardSite = 1;

namespace detail {
extern thread_local HgemmSettings thread_settings;
extern std::atomic<HgemmSettings> shared_settings;
extern std::atomic<int> default_tunes;
extern thread_local int thread_site;
extern std::atomic<bool> sites_on;
static_assert(std::atomic<HgemmSettings>::is_always_lock_free);
}  // namespace detail

/// The settings that apply to this thread. numerics is a NumericsMode, and float32 a Float32Mode; each is kAuto where
/// no context sets it. tunes is 0 or 1.
inline HgemmSettings context_settings() {
  HgemmSettings settings = detail::thread_settings;
  if (settings.variant == kNoContext) settings = detail::shared_settings.load(std::memory_order_relaxed);
  if (settings.variant == kOutside) settings.variant = kNoContext;
  if (settings.tunes == kAuto) {
    settings.tunes = static_cast<int8_t>(detail::default_tunes.load(std::memory_order_relaxed));
  }
  return settings;
}

/// Whether a context is active on this thread.
inline bool context_holds() {
  int variant = detail::thread_settings.variant;
  if (variant == kNoContext) variant = detail::shared_settings.load(std::memory_order_relaxed).variant;
  return variant != kNoContext && variant != kOutside;
}

/// The site of a call that this thread makes now; 0 while calls are not counted by site.
inline int current_site(bool in_backward) {
  if (!detail::sites_on.load(std::memory_order_relaxed)) return 0;
  const int site = detail::thread_site;
  return site == 0 && in_backward ? kBackwardSite : site;
}

}  // namespace hgemm
