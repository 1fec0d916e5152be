// Division by a number that is known at launch.
#pragma once

#include <cstdint>

#include "core/host_device.h"

namespace hgemm {

/// A multiplication and a shift, where the division of two variables takes a GPU some 150 cycles. Dividends are below
/// 2^31, the divisor in 1..2^31.
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
  /// 31 and the bits of divisor - 1, so that the multiplier has exactly 32 bits.
  static uint32_t shift_of(uint32_t divisor) {
    return divisor == 1 ? 31 : 63 - static_cast<uint32_t>(__builtin_clz(divisor - 1));
  }

  uint32_t divisor_ = 1, multiplier_ = uint32_t{1} << 31, shift_ = 31;
};

}  // namespace hgemm
