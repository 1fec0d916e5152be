// What use_custom_gemm() asks for: a setting of this thread, and one for the threads that have entered no context.
#pragma once

#include <atomic>

#include "core/problem.h"

namespace hgemm {

/// A setting is a variant's id, kTorch, kAuto, or this: no context holds.
constexpr int kNoContext = -4;
// Of numerics: a NumericsMode, or kAuto where the context says nothing of it.

/// The site of products that autograd computes; 0 is none.
constexpr int kBackwardSite = 1;

namespace detail {
extern thread_local int thread_setting;
extern thread_local int thread_numerics;
extern thread_local int thread_site;
extern std::atomic<int> shared_setting;
extern std::atomic<int> shared_numerics;
extern std::atomic<bool> sites_on;
}  // namespace detail

inline int context_setting() {
  const int own = detail::thread_setting;
  return own != kNoContext ? own : detail::shared_setting.load(std::memory_order_relaxed);
}

inline int context_numerics() {
  return detail::thread_setting != kNoContext ? detail::thread_numerics
                                              : detail::shared_numerics.load(std::memory_order_relaxed);
}

/// Where a product belongs, while somebody wants to know.
inline int current_site(bool in_backward) {
  if (!detail::sites_on.load(std::memory_order_relaxed)) return 0;
  const int site = detail::thread_site;
  return site == 0 && in_backward ? kBackwardSite : site;
}

}  // namespace hgemm
