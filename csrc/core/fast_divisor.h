// Division by a divisor that the host knows at launch.
#pragma once

#include <cstdint>

#include "core/host_device.h"

namespace hgemm {

/// Divides by a multiplication and a shift. A GPU needs some 150 cycles to divide two variables. The divisor must be in
/// 1..2^31 and dividends below 2^31.
/// T. Granlund, P. Montgomery, "Division by Invariant Integers using Multiplication", 1994.
class FastDivisor {
 public:
  FastDivisor() = default;
  explicit FastDivisor(uint32_t divisor)
      : divisor_(divisor),
        multiplier_(static_cast<uint32_t>(((uint64_t{1} << shift_of(divisor)) + divisor - 1) / divisor)),
        shift_(shift_of(divisor)) {}
  HGEMM_HOST_DEVICE uint32_t quotient(uint32_t dividend) const {
    return static_cast<uint32_t>(uint64_t{dividend} * multiplier_ >> shift_);
  }
  HGEMM_HOST_DEVICE uint32_t divisor() const { return divisor_; }

 private:
  /// 31 plus the number of bits of divisor - 1, which makes the multiplier exactly 32 bits wide.
  static uint32_t shift_of(uint32_t divisor) {
    return divisor == 1 ? 31 : 63 - static_cast<uint32_t>(__builtin_clz(divisor - 1));
  }

  uint32_t divisor_ = 1, multiplier_ = uint32_t{1} << 31, shift_ = 31;
};

}  // namespace hgemm
