#include "kernels/sm90_wgmma/stream_k.h"

#include <atomic>
#include <random>

namespace hgemm::sm90_wgmma {

uint64_t next_tag() {
  constexpr uint64_t kStep = 0x9e3779b97f4a7c15u;  // of splitmix64
  static std::atomic<uint64_t> state = [] {
    std::random_device device;
    return uint64_t{device()} << 32 | device();
  }();
  uint64_t x = state.fetch_add(kStep, std::memory_order_relaxed);
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
  x = (x ^ x >> 27) * 0x94d049bb133111ebu;
  return (x ^ x >> 31) | 1;  // not 0, which is a cleared flag
}

}  // namespace hgemm::sm90_wgmma
