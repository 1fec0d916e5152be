// Matrix multiply-accumulate of one warp on the float64 tensor cores of sm_90, m16n8k16.
// PTX ISA, "Matrix multiply-accumulate operation using mma instruction".
#pragma once

namespace hgemm::ptx {

/// D (16x8) += A (16x16, row-major) * B (16x8, column-major), all in float64. With g = lane / 4 and t = lane % 4, a
/// lane holds A[g + 8h][t + 4j] in a[2j + h], B[t + 4j][g] in b[j], and D[g + 8h][2t + e] in d[2h + e].
__device__ __forceinline__ void mma_f64_m16n8k16(double (&d)[4], const double (&a)[8], const double (&b)[4]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f64.f64.f64.f64 {%0, %1, %2, %3}, {%4, %5, %6, %7, %8, %9, %10, %11}, "
      "{%12, %13, %14, %15}, {%0, %1, %2, %3};\n"
      : "+d"(d[0]), "+d"(d[1]), "+d"(d[2]), "+d"(d[3])
      : "d"(a[0]), "d"(a[1]), "d"(a[2]), "d"(a[3]), "d"(a[4]), "d"(a[5]), "d"(a[6]), "d"(a[7]), "d"(b[0]), "d"(b[1]),
        "d"(b[2]), "d"(b[3]));
}

}  // namespace hgemm::ptx
