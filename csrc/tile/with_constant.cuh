// A run-time index as a constant, for accumulators: registers cannot be indexed at run time.
#pragma once

#include <type_traits>

namespace hgemm::tile {

/// Calls use() with the constant whose value `i` is, kFirst <= i < kLast. Comparisons find it, so only the code of
/// use() is compiled for each constant. The body of a loop around the call is compiled once.
template <int kFirst, int kLast, class Use>
__device__ __forceinline__ void with_constant(int i, const Use& use) {
  if constexpr (kFirst + 1 == kLast) {
    use(std::integral_constant<int, kFirst>());
  } else {
    constexpr int kMiddle = (kFirst + kLast) / 2;
    if (i < kMiddle) {
      with_constant<kFirst, kMiddle>(i, use);
    } else {
      with_constant<kMiddle, kLast>(i, use);
    }
  }
}

}  // namespace hgemm::tile
