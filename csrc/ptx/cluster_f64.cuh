// Access to float64 numbers in the shared memory of the CTAs of a cluster.
#pragma once

#include <cstdint>

namespace hgemm::ptx {

/// ld.shared::cluster.f64: loads 8 bytes from the shared memory of any CTA of the cluster.
__device__ __forceinline__ double cluster_load_8(uint32_t addr) {
  double v;
  asm volatile("ld.shared::cluster.f64 %0, [%1];\n" : "=d"(v) : "r"(addr) : "memory");
  return v;
}

}  // namespace hgemm::ptx
