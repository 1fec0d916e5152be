// Asynchronous copies global -> shared that bypass registers.
// PTX ISA, "Data Movement and Conversion Instructions: cp.async".
#pragma once

#include <cstdint>

namespace hgemm::ptx {

/// cp.async.cg of 16 bytes, both addresses 16-byte aligned; writes zeros and reads nothing unless `inside`.
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

/// cp.async.ca of kBytes (4, 8 or 16), both addresses aligned to that; otherwise like cp_async_16.
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

/// cp.async.ca of the first `bytes` of 4, which start on 4; zeros behind them, and nothing is read of none.
__device__ __forceinline__ void cp_async_part_4(uint32_t dst, uint64_t src, uint32_t bytes) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;\n" ::"r"(dst), "l"(src), "r"(bytes) : "memory");
}

/// cp.async.cg.L2::128B of the first `bytes` of 16, both addresses 16-byte aligned; zeros behind them, and nothing is
/// read of none. L2 fetches whole lines, as for ld_once_16.
__device__ __forceinline__ void cp_async_part_16(uint32_t dst, const void* src, uint32_t bytes) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;\n" ::"r"(dst), "l"(src), "r"(bytes) : "memory");
}

/// cp.async.commit_group: closes the group of all copies issued by this thread since the last one.
__device__ __forceinline__ void cp_async_commit() {
  asm volatile("cp.async.commit_group;\n" ::: "memory");
}

/// cp.async.wait_group: returns when at most kPending of this thread's youngest groups are still in flight.
template <int kPending>
__device__ __forceinline__ void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;\n" ::"n"(kPending) : "memory");
}

/// cp.async.wait_all: returns when all copies of this thread are complete, those outside a group too.
__device__ __forceinline__ void cp_async_wait_all() {
  asm volatile("cp.async.wait_all;\n" ::: "memory");
}

}  // namespace hgemm::ptx
