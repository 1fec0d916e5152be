// Loads eight consecutive 16-bit elements from an address that is only 2-byte aligned.
#pragma once

#include <cstdint>

namespace hgemm::tile {

/// Returns 1 if the element lies in the upper half of its aligned 32-bit word, else 0.
__device__ __forceinline__ int word_skew(uint64_t addr) {
  return static_cast<int>(addr >> 1) & 1;
}

/// Loads the aligned 32-bit words that cover elements 0..valid-1 (4 words, or 5 with a skew); all other words become
/// zero. The first and the last word may also contain a neighbour before and behind these elements. `at_end`: the
/// neighbour behind them may not exist, so only the lower 16 bits of the last word are loaded. With a skew, the
/// neighbour before them always exists, because allocations start on whole words.
__device__ __forceinline__ void load_words(uint32_t (&words)[5], uint64_t addr, int valid, bool at_end) {
  const int skew = word_skew(addr);
  const uint32_t* from = reinterpret_cast<const uint32_t*>(addr - 2 * skew);
  // Word w contains the elements 2w - skew and 2w - skew + 1.
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

/// Shifts the words into place and clears all elements from `valid` on.
__device__ __forceinline__ void align_words(uint32_t (&out)[4], const uint32_t (&words)[5], int skew, int valid) {
#pragma unroll
  for (int w = 0; w < 4; ++w) {
    out[w] = __funnelshift_r(words[w], words[w + 1], skew * 16);
    if (2 * w + 1 >= valid) out[w] = 2 * w >= valid ? 0u : out[w] & 0xffffu;
  }
}

}  // namespace hgemm::tile
