// Warp-wide stores of 8x8 matrices of 16-bit elements from mma fragments: the inverse of ldmatrix.
// PTX ISA, "Warp Level Matrix Instructions: stmatrix".
#pragma once

#include <cstdint>

namespace hgemm::ptx {

/// Stores four 8x8 matrices. Lane l supplies the address of row l % 8 of matrix l / 8 and, of each matrix, element (l /
/// 4, 2 * (l % 4)) and its right neighbour.
__device__ __forceinline__ void stmatrix_x4(uint32_t addr, uint32_t r0, uint32_t r1, uint32_t r2, uint32_t r3) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};\n" ::"r"(addr), "r"(r0), "r"(r1),
               "r"(r2), "r"(r3)
               : "memory");
}

/// Stores like stmatrix_x4, but transposes each matrix: lane l supplies element (2 * (l % 4), l / 4) and the one below
/// it.
__device__ __forceinline__ void stmatrix_x4_trans(uint32_t addr, uint32_t r0, uint32_t r1, uint32_t r2, uint32_t r3) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};\n" ::"r"(addr), "r"(r0), "r"(r1),
               "r"(r2), "r"(r3)
               : "memory");
}

}  // namespace hgemm::ptx
