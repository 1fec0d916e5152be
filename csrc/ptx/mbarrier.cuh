// Barriers: mbarrier objects in shared memory (arrivals and bytes of asynchronous copies) and the named CTA barriers.
// PTX ISA, "Parallel Synchronization and Communication Instructions: mbarrier, barrier".
#pragma once

#include <cstdint>

namespace hgemm::ptx {

/// mbarrier.init: a phase completes after `arrivals` arrivals and as many bytes as those announced.
__device__ __forceinline__ void mbarrier_init(uint32_t bar, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;\n" ::"r"(bar), "r"(arrivals) : "memory");
}

/// fence.mbarrier_init: initialised barriers become visible to the cluster and to the asynchronous proxy.
__device__ __forceinline__ void fence_mbarrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;\n" ::: "memory");
}

/// mbarrier.arrive.expect_tx: arrives and announces bytes that a copy will complete on this barrier.
__device__ __forceinline__ void mbarrier_arrive_expect_tx(uint32_t bar, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;\n" ::"r"(bar), "r"(bytes) : "memory");
}

/// mbarrier.arrive on a barrier of this CTA.
__device__ __forceinline__ void mbarrier_arrive(uint32_t bar) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];\n" ::"r"(bar) : "memory");
}

/// mbarrier.arrive on the barrier at the same place in CTA `rank` of the cluster.
/// NOTE: a release at cluster scope would compile to a memory fence over the whole GPU, which costs half the speed of a
/// main loop. What a consumer hands back are reads that have completed; nothing needs to be made visible.
__device__ __forceinline__ void mbarrier_arrive_cluster(uint32_t bar, uint32_t rank) {
  asm volatile(
      "{\n"
      ".reg .b32 remote;\n"
      "mapa.shared::cluster.u32 remote, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [remote];\n"
      "}\n" ::"r"(bar),
      "r"(rank)
      : "memory");
}

/// mbarrier.try_wait.parity in a loop: returns once the phase of this parity has completed.
__device__ __forceinline__ void mbarrier_wait(uint32_t bar, uint32_t parity) {
  uint32_t done;
  do {
    asm volatile(
        "{\n"
        ".reg .pred complete;\n"
        "mbarrier.try_wait.parity.shared::cta.b64 complete, [%1], %2;\n"
        "selp.u32 %0, 1, 0, complete;\n"
        "}\n"
        : "=r"(done)
        : "r"(bar), "r"(parity)
        : "memory");
  } while (!done);
}

/// barrier.sync: waits until `threads` threads, this one included, have come to named barrier `id` (0 is
/// __syncthreads).
__device__ __forceinline__ void barrier_sync(uint32_t id, uint32_t threads) {
  asm volatile("barrier.sync %0, %1;\n" ::"r"(id), "r"(threads) : "memory");
}

/// barrier.arrive: counts as having come, without waiting.
__device__ __forceinline__ void barrier_arrive(uint32_t id, uint32_t threads) {
  asm volatile("barrier.arrive %0, %1;\n" ::"r"(id), "r"(threads) : "memory");
}

}  // namespace hgemm::ptx
