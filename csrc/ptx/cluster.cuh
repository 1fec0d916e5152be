// The CTAs of a cluster: rank, barrier, and access to each other's shared memory.
#pragma once

#include <cstdint>

namespace hgemm::ptx {

__device__ __forceinline__ uint32_t cluster_rank() {
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;\n" : "=r"(rank));
  return rank;
}

/// barrier.cluster.arrive + wait: returns once every thread of every CTA in the cluster has arrived.
__device__ __forceinline__ void cluster_sync() {
  asm volatile(
      "barrier.cluster.arrive.release.aligned;\n"
      "barrier.cluster.wait.acquire.aligned;\n" ::
          : "memory");
}

/// barrier.cluster.arrive.relaxed: arrives without a release. After their wait, other threads see only those earlier
/// writes of this thread that a separate fence has released, as fence_mbarrier_init does.
/// NOTE: an arrive with release, as in cluster_sync, compiles to a memory fence over the whole GPU.
__device__ __forceinline__ void cluster_arrive_relaxed() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;\n" ::: "memory");
}

/// barrier.cluster.wait: returns once every thread of every CTA in the cluster has arrived.
__device__ __forceinline__ void cluster_wait() {
  asm volatile("barrier.cluster.wait.acquire.aligned;\n" ::: "memory");
}

/// mapa: maps a shared-memory address of this CTA to the same address in CTA `rank` of the cluster.
__device__ __forceinline__ uint32_t cluster_map(uint32_t addr, uint32_t rank) {
  uint32_t remote;
  asm("mapa.shared::cluster.u32 %0, %1, %2;\n" : "=r"(remote) : "r"(addr), "r"(rank));
  return remote;
}

/// ld.shared::cluster.f32: loads 4 bytes from the shared memory of any CTA of the cluster.
__device__ __forceinline__ float cluster_load_4(uint32_t addr) {
  float v;
  asm volatile("ld.shared::cluster.f32 %0, [%1];\n" : "=f"(v) : "r"(addr) : "memory");
  return v;
}

/// st.async.v4.f32, st.async.v4.s32: stores 16 bytes to the shared memory of any CTA of the cluster and completes them
/// on `bar`, a barrier of that CTA.
__device__ __forceinline__ void cluster_store_async_16(uint32_t addr, float a, float b, float c, float d,
                                                       uint32_t bar) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];\n" ::"r"(addr),
      "f"(a), "f"(b), "f"(c), "f"(d), "r"(bar)
      : "memory");
}
__device__ __forceinline__ void cluster_store_async_16(uint32_t addr, int32_t a, int32_t b, int32_t c, int32_t d,
                                                       uint32_t bar) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.s32 [%0], {%1, %2, %3, %4}, [%5];\n" ::"r"(addr),
      "r"(a), "r"(b), "r"(c), "r"(d), "r"(bar)
      : "memory");
}

}  // namespace hgemm::ptx
