// Tensor copies between global and shared memory, issued by one thread. The tensor map holds extents, strides, box and
// swizzle.
#pragma once

#include <cstdint>

namespace hgemm::ptx {

/// The start of a box: its element along the contiguous index, its row, and its two batch indices.
struct TmaCoord {
  int32_t col, row, inner, outer;
};

/// prefetch.tensormap: fetches the tensor map ahead of time, so that this does not delay the first copy.
__device__ __forceinline__ void tma_prefetch(const void* map) {
  asm volatile("prefetch.tensormap [%0];\n" ::"l"(map) : "memory");
}

/// Copies a box from global to shared memory. The copy completes the bytes of the whole box on `bar`; elements outside
/// the tensor are zeros.
__device__ __forceinline__ void tma_load(uint32_t dst, const void* map, uint32_t bar, TmaCoord at) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], "
      "[%2];\n" ::"r"(dst),
      "l"(map), "r"(bar), "r"(at.col), "r"(at.row), "r"(at.inner), "r"(at.outer)
      : "memory");
}

/// createpolicy: returns a policy by which L2 evicts these lines before others. It is for data that is read once.
__device__ __forceinline__ uint64_t evict_first_policy() {
  uint64_t policy;
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;\n" : "=l"(policy));
  return policy;
}

/// tma_load with an L2 cache policy.
__device__ __forceinline__ void tma_load_hinted(uint32_t dst, const void* map, uint32_t bar, TmaCoord at,
                                                uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint [%0], "
      "[%1, {%3, %4, %5, %6}], [%2], %7;\n" ::"r"(dst),
      "l"(map), "r"(bar), "r"(at.col), "r"(at.row), "r"(at.inner), "r"(at.outer), "l"(policy)
      : "memory");
}

/// cp.async.bulk.prefetch.tensor: brings a box into L2. It is only a hint: in the memory model it reads nothing.
__device__ __forceinline__ void tma_prefetch_box(const void* map, TmaCoord at) {
  asm volatile("cp.async.bulk.prefetch.tensor.4d.L2.global.tile [%0, {%1, %2, %3, %4}];\n" ::"l"(map), "r"(at.col),
               "r"(at.row), "r"(at.inner), "r"(at.outer)
               : "memory");
}

/// tma_load into every CTA of the cluster whose bit is set in `ctas`. Each CTA receives the box at its own `dst` and
/// the bytes on its own `bar`.
__device__ __forceinline__ void tma_load_multicast(uint32_t dst, const void* map, uint32_t bar, TmaCoord at,
                                                   uint16_t ctas) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster [%0], "
      "[%1, {%3, %4, %5, %6}], [%2], %7;\n" ::"r"(dst),
      "l"(map), "r"(bar), "r"(at.col), "r"(at.row), "r"(at.inner), "r"(at.outer), "h"(ctas)
      : "memory");
}

/// Copies a box from shared to global memory. Rows outside the tensor are not written.
/// NOTE: along the contiguous index, stores are clipped to 16 bytes, while loads are clipped to the element. Seen on
/// the H200.
__device__ __forceinline__ void tma_store(const void* map, uint32_t src, TmaCoord at) {
  asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4, %5}], [%1];\n" ::"l"(map),
               "r"(src), "r"(at.col), "r"(at.row), "r"(at.inner), "r"(at.outer)
               : "memory");
}

/// cp.async.bulk.commit_group: closes the group of all stores that this thread has issued since its last group.
__device__ __forceinline__ void tma_store_commit() {
  asm volatile("cp.async.bulk.commit_group;\n" ::: "memory");
}

/// cp.async.bulk.wait_group.read: returns when all but the kPending youngest groups of this thread have been read from
/// shared memory.
template <int kPending>
__device__ __forceinline__ void tma_store_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;\n" ::"n"(kPending) : "memory");
}

/// fence.proxy.async: orders this thread's earlier ordinary writes to shared memory before later asynchronous reads of
/// them.
__device__ __forceinline__ void fence_proxy_async() {
  asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory");
}

}  // namespace hgemm::ptx
