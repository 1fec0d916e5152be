// Warp-wide loads of 8x8 matrices of 16-bit elements into the registers that mma.sync takes as fragments.
#pragma once

#include <cstdint>

namespace hgemm::ptx {

/// Loads four 8x8 matrices. Lane l supplies the address of row l % 8 of matrix l / 8. Of each matrix, lane l receives
/// element (l / 4, 2 * (l % 4)) and its right neighbour.
__device__ __forceinline__ void ldmatrix_x4(uint32_t (&r)[4], uint32_t addr) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(addr)
               : "memory");
}

/// Loads like ldmatrix_x4, but transposes each 8x8 matrix.
__device__ __forceinline__ void ldmatrix_x4_trans(uint32_t (&r)[4], uint32_t addr) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(addr)
               : "memory");
}

}  // namespace hgemm::ptx
