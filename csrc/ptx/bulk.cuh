// Copies of plain bytes by the asynchronous proxy, without a tensor map.
// PTX ISA, "Data Movement and Conversion Instructions: cp.async.bulk", "... membar, fence: fence.proxy".
#pragma once

#include <cstdint>

namespace hgemm::ptx {

/// cp.async.bulk: global -> shared; 16-byte aligned, a multiple of 16 bytes. Completes them on `bar`.
__device__ __forceinline__ void bulk_load(uint32_t dst, const void* src, uint32_t bytes, uint32_t bar) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];\n" ::"r"(dst),
               "l"(src), "r"(bytes), "r"(bar)
               : "memory");
}

/// fence.proxy.async: ordinary writes to global memory that this thread knows of come before its later bulk copies.
__device__ __forceinline__ void fence_proxy_async_global() {
  asm volatile("fence.proxy.async.global;\n" ::: "memory");
}

}  // namespace hgemm::ptx
