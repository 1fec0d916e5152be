// Barriers: mbarrier objects in shared memory (arrivals and bytes of asynchronous copies) and the named CTA barriers.
// PTX ISA, "Parallel Synchronization and Communication Instructions: mbarrier, barrier".
#pragma once

#include <cstdint>

namespace hgemm::ptx {

/// mbarrier.init: a phase completes after `arrivals` arrivals and after all bytes that were announced for it.
__device__ __forceinline__ void mbarrier_init(uint32_t bar, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;\n" ::"r"(bar), "r"(arrivals) : "memory");
}

/// fence.mbarrier_init: makes initialised barriers visible to the cluster and to the asynchronous proxy.
__device__ __forceinline__ void fence_mbarrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;\n" ::: "memory");
}

/// mbarrier.arrive.expect_tx: arrives, and announces `bytes` that copies will complete on this barrier.
__device__ __forceinline__ void mbarrier_arrive_expect_tx(uint32_t bar, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;\n" ::"r"(bar), "r"(bytes) : "memory");
}

/// mbarrier.arrive: arrives on a barrier of this CTA.
__device__ __forceinline__ void mbarrier_arrive(uint32_t bar) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];\n" ::"r"(bar) : "memory");
}

/// mbarrier.arrive: arrives on the barrier with the same address in CTA `rank` of the cluster.
/// NOTE: a release at cluster scope would compile to a memory fence over the whole GPU, which costs half the speed of a
/// main loop. A consumer that frees a stage has only completed its reads, so no writes need to be made visible.
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

/// mbarrier.try_wait.parity in a loop: returns once the phase with this parity has completed.
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

/// barrier.sync: returns once `threads` threads, including this one, have arrived at named barrier `id` (0 is that of
/// __syncthreads).
__device__ __forceinline__ void barrier_sync(uint32_t id, uint32_t threads) {
  asm volatile("barrier.sync %0, %1;\n" ::"r"(id), "r"(threads) : "memory");
}

/// barrier.arrive: arrives at the named barrier without waiting.
__device__ __forceinline__ void barrier_arrive(uint32_t id, uint32_t threads) {
  asm volatile("barrier.arrive %0, %1;\n" ::"r"(id), "r"(threads) : "memory");
}

}  // namespace hgemm::ptx
