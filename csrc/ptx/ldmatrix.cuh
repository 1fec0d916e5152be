// Warp-wide loads of 8x8 matrices of 16-bit elements, shaped as mma.sync wants its fragments.
// PTX ISA, "Warp Level Matrix Instructions: ldmatrix".
#pragma once

#include <cstdint>

namespace hgemm::ptx {

/// Four 8x8 matrices; lane l supplies the address of row l % 8 of matrix l / 8. Lane l receives, of each matrix, the
/// elements (l / 4, 2 * (l % 4)) and the one right of it.
__device__ __forceinline__ void ldmatrix_x4(uint32_t (&r)[4], uint32_t addr) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(addr)
               : "memory");
}

/// The same with every 8x8 matrix transposed on the way.
__device__ __forceinline__ void ldmatrix_x4_trans(uint32_t (&r)[4], uint32_t addr) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(addr)
               : "memory");
}

}  // namespace hgemm::ptx
