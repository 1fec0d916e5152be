// Asynchronous copies from global to shared memory that bypass registers.
#pragma once

#include <cstdint>

namespace hgemm::ptx {

/// cp.async.cg: copies 16 bytes if `inside`, else reads nothing and writes zeros. Both addresses are multiples of 16.
__device__ __forceinline__ void cp_async_16(uint32_t dst, const void* src, bool inside) {
  asm volatile(
      "{\n"
      ".reg .pred ignore_src;\n"
      "setp.eq.u32 ignore_src, %2, 0;\n"
      "cp.async.cg.shared.global [%0], [%1], 16, ignore_src;\n"
      "}\n" ::"r"(dst),
      "l"(src), "r"(static_cast<uint32_t>(inside))
      : "memory");
}

/// The same, and L2 fetches whole lines, as for ld_once_16.
__device__ __forceinline__ void cp_async_line_16(uint32_t dst, const void* src, bool inside) {
  asm volatile(
      "{\n"
      ".reg .pred ignore_src;\n"
      "setp.eq.u32 ignore_src, %2, 0;\n"
      "cp.async.cg.shared.global.L2::128B [%0], [%1], 16, ignore_src;\n"
      "}\n" ::"r"(dst),
      "l"(src), "r"(static_cast<uint32_t>(inside))
      : "memory");
}

/// cp.async.ca: copies kBytes (4, 8 or 16) if `inside`, else reads nothing and writes zeros. Both addresses are
/// multiples of kBytes.
template <int kBytes>
__device__ __forceinline__ void cp_async(uint32_t dst, const void* src, bool inside) {
  asm volatile(
      "{\n"
      ".reg .pred ignore_src;\n"
      "setp.eq.u32 ignore_src, %2, 0;\n"
      "cp.async.ca.shared.global [%0], [%1], %3, ignore_src;\n"
      "}\n" ::"r"(dst),
      "l"(src), "r"(static_cast<uint32_t>(inside)), "n"(kBytes)
      : "memory");
}

/// cp.async.ca: copies the first `bytes` of 4 bytes and writes zeros for the rest. With `bytes` 0 it reads nothing.
/// Both addresses are multiples of 4.
__device__ __forceinline__ void cp_async_part_4(uint32_t dst, uint64_t src, uint32_t bytes) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;\n" ::"r"(dst), "l"(src), "r"(bytes) : "memory");
}

/// cp.async.cg.L2::128B: copies the first `bytes` of 16 bytes and writes zeros for the rest. With `bytes` 0 it reads
/// nothing. Both addresses are multiples of 16. L2 fetches whole lines, as for ld_once_16.
__device__ __forceinline__ void cp_async_part_16(uint32_t dst, const void* src, uint32_t bytes) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;\n" ::"r"(dst), "l"(src), "r"(bytes) : "memory");
}

/// cp.async.commit_group: closes the group of all copies that this thread has issued since its last group.
__device__ __forceinline__ void cp_async_commit() {
  asm volatile("cp.async.commit_group;\n" ::: "memory");
}

/// cp.async.wait_group: returns when at most the kPending youngest groups of this thread are still in flight.
template <int kPending>
__device__ __forceinline__ void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;\n" ::"n"(kPending) : "memory");
}

/// cp.async.wait_all: returns when all copies of this thread are complete, including those outside a group.
__device__ __forceinline__ void cp_async_wait_all() {
  asm volatile("cp.async.wait_all;\n" ::: "memory");
}

}  // namespace hgemm::ptx
