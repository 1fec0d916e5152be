// Asynchronous copies of contiguous bytes, without a tensor map.
// PTX ISA, "Data Movement and Conversion Instructions: cp.async.bulk", "... membar, fence: fence.proxy".
#pragma once

#include <cstdint>

namespace hgemm::ptx {

/// cp.async.bulk: copies `bytes` from global to shared memory and completes them on `bar`. Both addresses and `bytes`
/// are multiples of 16.
__device__ __forceinline__ void bulk_load(uint32_t dst, const void* src, uint32_t bytes, uint32_t bar) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];\n" ::"r"(dst),
               "l"(src), "r"(bytes), "r"(bar)
               : "memory");
}

/// fence.proxy.async: orders this thread's later bulk copies after the ordinary writes to global memory that it made or
/// observed before.
__device__ __forceinline__ void fence_proxy_async_global() {
  asm volatile("fence.proxy.async.global;\n" ::: "memory");
}

/// cp.async.bulk.prefetch.L2: brings `bytes` from `src` into L2. Both are multiples of 16. It is only a hint.
__device__ __forceinline__ void bulk_prefetch(const void* src, uint32_t bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;\n" ::"l"(src), "r"(bytes) : "memory");
}

}  // namespace hgemm::ptx
