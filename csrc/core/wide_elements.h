// What kernels for float64 and complex64 require of a problem.
#pragma once

#include <cstdint>

#include "core/problem.h"
#include "core/variant_list.h"

namespace hgemm {

/// Returns true if a problem of float64 or complex64 asks for nothing that its kernels do not do: they apply no
/// activation, and load and store whole elements. Otherwise refuses.
inline bool takes_wide(const Problem& p, Reason* why) {
  if (p.act != Activation::kNone || p.pre_activation != nullptr) {
    return refuse(why, "activations are computed in float32, which %s does not allow", dtype_name(p.dtype));
  }
  constexpr int kBytes = 8;
  uintptr_t addresses = 0;
  for (const void* data : {static_cast<const void*>(p.a.data), static_cast<const void*>(p.b.data),
                           static_cast<const void*>(p.c.data), static_cast<const void*>(p.d.data), p.bias}) {
    addresses |= reinterpret_cast<uintptr_t>(data);
  }
  return addresses % kBytes == 0 || refuse(why, "elements must start at multiples of %d bytes", kBytes);
}

}  // namespace hgemm
