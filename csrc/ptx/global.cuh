// Loads from global memory that stay behind griddepcontrol.wait, which `ld.global.nc` does not (dependent_launch.cuh).
#pragma once

#include <cstdint>

namespace hgemm::ptx {

/// ld.global.L1::no_allocate.L2::128B.v4.b32: loads 16 aligned bytes that are read only once. L2 fetches whole lines;
/// without that hint a large matrix is read 15 % slower.
__device__ __forceinline__ uint4 ld_once_16(const void* p) {
  uint4 v;
  asm volatile("ld.global.L1::no_allocate.L2::128B.v4.b32 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p)
               : "memory");
  return v;
}

/// The same for 8 aligned bytes.
__device__ __forceinline__ uint2 ld_once_8(const void* p) {
  uint2 v;
  asm volatile("ld.global.L1::no_allocate.L2::128B.v2.b32 {%0, %1}, [%2];\n"
               : "=r"(v.x), "=r"(v.y)
               : "l"(p)
               : "memory");
  return v;
}

/// ld.global.v4.b32: loads 16 aligned bytes.
__device__ __forceinline__ uint4 ld_16(const void* p) {
  uint4 v;
  asm volatile("ld.global.v4.b32 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p)
               : "memory");
  return v;
}

/// ld.global.v2.b32: loads 8 aligned bytes.
__device__ __forceinline__ uint2 ld_8(const void* p) {
  uint2 v;
  asm volatile("ld.global.v2.b32 {%0, %1}, [%2];\n" : "=r"(v.x), "=r"(v.y) : "l"(p) : "memory");
  return v;
}

/// ld.global.cg.f32: loads 4 bytes from L2. It bypasses L1, which may hold values from before other SMs wrote.
__device__ __forceinline__ float ld_l2_4(const float* p) {
  float v;
  asm volatile("ld.global.cg.f32 %0, [%1];\n" : "=f"(v) : "l"(p) : "memory");
  return v;
}

/// ld.global.cg.v4.f32: loads 16 aligned bytes from L2, bypassing L1 like ld_l2_4.
__device__ __forceinline__ float4 ld_l2_16(const float* p) {
  float4 v;
  asm volatile("ld.global.cg.v4.f32 {%0, %1, %2, %3}, [%4];\n"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "l"(p)
               : "memory");
  return v;
}

/// ld.global.b32: loads 4 aligned bytes, two 16-bit elements.
__device__ __forceinline__ uint32_t ld_4(const void* p) {
  uint32_t v;
  asm volatile("ld.global.b32 %0, [%1];\n" : "=r"(v) : "l"(p) : "memory");
  return v;
}

/// ld.global.u8: loads one byte.
__device__ __forceinline__ uint8_t ld_1(const void* p) {
  uint32_t v;
  asm volatile("ld.global.u8 %0, [%1];\n" : "=r"(v) : "l"(p) : "memory");
  return static_cast<uint8_t>(v);
}

/// ld.global.u16: loads one 16-bit element.
__device__ __forceinline__ uint16_t ld_2(const void* p) {
  uint16_t v;
  asm volatile("ld.global.u16 %0, [%1];\n" : "=h"(v) : "l"(p) : "memory");
  return v;
}

}  // namespace hgemm::ptx
