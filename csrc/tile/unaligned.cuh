// Eight consecutive 16-bit elements from an address that is only 2-byte aligned.
#pragma once

#include <cstdint>

namespace hgemm::tile {

/// 1 if the element lies in the upper half of its aligned 32-bit word.
__device__ __forceinline__ int word_skew(uint64_t addr) {
  return static_cast<int>(addr >> 1) & 1;
}

/// Loads the aligned 32-bit words that cover elements 0..valid-1 (4, or 5 under a skew); the others become zeros. A
/// word may hold one neighbour before and one behind them; `at_end`: the one behind may not exist, and half a word is
/// loaded. Under a skew the one before always exists: allocations start on whole words.
__device__ __forceinline__ void load_words(uint32_t (&words)[5], uint64_t addr, int valid, bool at_end) {
  const int skew = word_skew(addr);
  const uint32_t* from = reinterpret_cast<const uint32_t*>(addr - 2 * skew);
  // Word w holds elements 2w - skew and 2w - skew + 1.
  const auto wanted = [&](int w) { return (w == 0 ? 0 : 2 * w - skew) < valid && (w < 4 || skew); };
  if (!at_end) {
#pragma unroll
    for (int w = 0; w < 5; ++w) words[w] = wanted(w) ? __ldg(from + w) : 0u;
  } else {
#pragma unroll
    for (int w = 0; w < 5; ++w) {
      words[w] = 0;
      if (wanted(w)) {
        words[w] =
            2 * w - skew + 1 < valid ? __ldg(from + w) : __ldg(reinterpret_cast<const unsigned short*>(from + w));
      }
    }
  }
}

/// Shifts the words into place and clears what lies beyond `valid` elements.
__device__ __forceinline__ void align_words(uint32_t (&out)[4], const uint32_t (&words)[5], int skew, int valid) {
#pragma unroll
  for (int w = 0; w < 4; ++w) {
    out[w] = __funnelshift_r(words[w], words[w + 1], skew * 16);
    if (2 * w + 1 >= valid) out[w] = 2 * w >= valid ? 0u : out[w] & 0xffffu;
  }
}

}  // namespace hgemm::tile
