// What use_custom_gemm() asks for: settings of this thread, and those for the threads that have entered no context.
#pragma once

#include <atomic>

#include "core/problem.h"

namespace hgemm {

/// A setting is a variant's id, kTorch, kAuto, or this: no context holds.
constexpr int kNoContext = -4;
/// Of a thread's own setting: no context holds for it, whatever others have entered.
constexpr int kOutside = -5;
// Of numerics and float32: a NumericsMode or a Float32Mode, or kAuto where the context says nothing of it.

/// The site of products that autograd computes; 0 is none.
constexpr int kBackwardSite = 1;

namespace detail {
extern thread_local int thread_setting;
extern thread_local int thread_numerics;
extern thread_local int thread_float32;
extern thread_local int thread_site;
extern std::atomic<int> shared_setting;
extern std::atomic<int> shared_numerics;
extern std::atomic<int> shared_float32;
extern thread_local int thread_tunes;  // 1, 0, or -1: no context holds
extern std::atomic<int> shared_tunes;
extern std::atomic<int> default_tunes;
extern std::atomic<bool> sites_on;
}  // namespace detail

inline int context_setting() {
  const int own = detail::thread_setting;
  if (own == kNoContext) return detail::shared_setting.load(std::memory_order_relaxed);
  return own == kOutside ? kNoContext : own;
}

/// Whether shapes that the table lacks are to be timed (dispatch/tuning.h).
inline bool context_tunes() {
  if (detail::thread_tunes >= 0) return detail::thread_tunes != 0;
  const int shared = detail::shared_tunes.load(std::memory_order_relaxed);
  return (shared >= 0 ? shared : detail::default_tunes.load(std::memory_order_relaxed)) != 0;
}

inline int context_numerics() {
  return detail::thread_setting != kNoContext ? detail::thread_numerics
                                              : detail::shared_numerics.load(std::memory_order_relaxed);
}

inline int context_float32() {
  return detail::thread_setting != kNoContext ? detail::thread_float32
                                              : detail::shared_float32.load(std::memory_order_relaxed);
}

/// Where a product belongs, while somebody wants to know.
inline int current_site(bool in_backward) {
  if (!detail::sites_on.load(std::memory_order_relaxed)) return 0;
  const int site = detail::thread_site;
  return site == 0 && in_backward ? kBackwardSite : site;
}

}  // namespace hgemm
