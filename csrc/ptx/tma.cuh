// Tensor copies between global and shared memory by one thread; the tensor map holds extents, strides, box and swizzle.
// PTX ISA, "Data Movement and Conversion Instructions: cp.async.bulk.tensor".
#pragma once

#include <cstdint>

namespace hgemm::ptx {

/// Where a box starts: elements along the contiguous index, rows, and two batch indices.
struct TmaCoord {
  int32_t col, row, inner, outer;
};

/// prefetch.tensormap: the descriptor's own fetch no longer delays the first copy.
__device__ __forceinline__ void tma_prefetch(const void* map) {
  asm volatile("prefetch.tensormap [%0];\n" ::"l"(map) : "memory");
}

/// Global -> shared; completes the whole box's bytes on `bar`, with zeros for what lies outside the tensor.
__device__ __forceinline__ void tma_load(uint32_t dst, const void* map, uint32_t bar, TmaCoord at) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], "
      "[%2];\n" ::"r"(dst),
      "l"(map), "r"(bar), "r"(at.col), "r"(at.row), "r"(at.inner), "r"(at.outer)
      : "memory");
}

/// createpolicy: L2 gives up these lines before others. For what is read once.
__device__ __forceinline__ uint64_t evict_first_policy() {
  uint64_t policy;
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;\n" : "=l"(policy));
  return policy;
}

/// tma_load under an L2 policy.
__device__ __forceinline__ void tma_load_hinted(uint32_t dst, const void* map, uint32_t bar, TmaCoord at,
                                                uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint [%0], "
      "[%1, {%3, %4, %5, %6}], [%2], %7;\n" ::"r"(dst),
      "l"(map), "r"(bar), "r"(at.col), "r"(at.row), "r"(at.inner), "r"(at.outer), "l"(policy)
      : "memory");
}

/// cp.async.bulk.prefetch.tensor: brings a box into L2. A hint: nothing is read as far as the memory model goes.
__device__ __forceinline__ void tma_prefetch_box(const void* map, TmaCoord at) {
  asm volatile("cp.async.bulk.prefetch.tensor.4d.L2.global.tile [%0, {%1, %2, %3, %4}];\n" ::"l"(map), "r"(at.col),
               "r"(at.row), "r"(at.inner), "r"(at.outer)
               : "memory");
}

/// tma_load into every CTA of the cluster whose bit is set in `ctas`, each at its own `dst` and on its own `bar`.
__device__ __forceinline__ void tma_load_multicast(uint32_t dst, const void* map, uint32_t bar, TmaCoord at,
                                                   uint16_t ctas) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster [%0], "
      "[%1, {%3, %4, %5, %6}], [%2], %7;\n" ::"r"(dst),
      "l"(map), "r"(bar), "r"(at.col), "r"(at.row), "r"(at.inner), "r"(at.outer), "h"(ctas)
      : "memory");
}

/// Shared -> global; rows outside the tensor are not written.
/// NOTE: along the contiguous index stores are clipped to 16 bytes, not to the element (loads are): seen on the H200.
__device__ __forceinline__ void tma_store(const void* map, uint32_t src, TmaCoord at) {
  asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4, %5}], [%1];\n" ::"l"(map),
               "r"(src), "r"(at.col), "r"(at.row), "r"(at.inner), "r"(at.outer)
               : "memory");
}

/// cp.async.bulk.commit_group: closes the group of this thread's stores since the last one.
__device__ __forceinline__ void tma_store_commit() {
  asm volatile("cp.async.bulk.commit_group;\n" ::: "memory");
}

/// cp.async.bulk.wait_group.read: all but this thread's kPending youngest groups have left shared memory.
template <int kPending>
__device__ __forceinline__ void tma_store_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;\n" ::"n"(kPending) : "memory");
}

/// fence.proxy.async: this thread's ordinary writes to shared memory come before later asynchronous reads of them.
__device__ __forceinline__ void fence_proxy_async() {
  asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory");
}

}  // namespace hgemm::ptx
