// Division that rounds up.
#pragma once

#include <cstdint>

namespace hgemm {

/// a / b, rounded up. Requires a >= 0 and b > 0. A decision makes hundreds of these divisions, and many CPUs divide
/// 32-bit numbers in a third of the time that 64-bit ones take.
inline int64_t ceil_div(int64_t a, int64_t b) {
  const auto above = static_cast<uint64_t>(a + b - 1), by = static_cast<uint64_t>(b);
  if ((above | by) >> 32 == 0) return static_cast<uint32_t>(above) / static_cast<uint32_t>(by);
  return static_cast<int64_t>(above / by);
}

}  // namespace hgemm
