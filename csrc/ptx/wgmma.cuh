// Asynchronous matrix multiply-accumulate of a warpgroup, with operands in shared memory and accumulators in registers.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace hgemm::ptx {

/// setmaxnreg: a warpgroup releases registers that another warpgroup can claim. All warps of a warpgroup execute it.
template <int kRegisters>
__device__ __forceinline__ void release_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;\n" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void claim_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;\n" ::"n"(kRegisters));
}

/// Returns the matrix descriptor of a tile in shared memory. A tile consists of lines of kLine bytes, which are
/// swizzled over kLine bytes, and groups of eight lines are aligned. Offsets are in bytes. With a swizzle, `stride`
/// leads to the next eight lines, and `leading`, which only MN-major tiles use, to the next kLine bytes along the outer
/// index. Without a swizzle (kLine 16), `leading` leads to the next eight lines.
template <int kLine = 128>
__device__ __forceinline__ uint64_t wgmma_descriptor(uint32_t addr, uint32_t leading, uint32_t stride) {
  static_assert(kLine == 128 || kLine == 64 || kLine == 32 || kLine == 16);
  constexpr uint64_t kSwizzle = kLine == 128 ? 1 : kLine == 64 ? 2 : kLine == 32 ? 3 : 0;
  return kSwizzle << 62 | static_cast<uint64_t>(stride >> 4) << 32 | static_cast<uint64_t>(leading >> 4) << 16 |
         (addr & 0x3ffff) >> 4;
}

/// Moves a descriptor by `bytes`.
__device__ __forceinline__ uint64_t wgmma_advance(uint64_t descriptor, uint32_t bytes) {
  return descriptor + (bytes >> 4);
}

/// wgmma.fence: orders earlier writes to registers before the wgmma that accumulate into them.
__device__ __forceinline__ void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory");
}

/// wgmma.commit_group: closes the group of all wgmma issued since the last group.
__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory");
}

/// wgmma.wait_group: returns when at most the kPending youngest groups are still running.
template <int kPending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;\n" ::"n"(kPending) : "memory");
}

/// Keeps the compiler from moving reads of the accumulators above the wait that they depend on.
template <int kCount>
__device__ __forceinline__ void wgmma_pin(float (&d)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(d[i])::"memory");
}
template <int kCount>
__device__ __forceinline__ void wgmma_pin(int32_t (&d)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+r"(d[i])::"memory");
}

// The accumulators of m64nN as asm operands: HGEMM_NAMES_N are their names in the text, HGEMM_OPERANDS_N their
// constraints, where C is "+f" for float32 and "+r" for int32.
#define HGEMM_NAMES_8 "%0, %1, %2, %3"
#define HGEMM_NAMES_16 HGEMM_NAMES_8 ", %4, %5, %6, %7"
#define HGEMM_NAMES_32 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define HGEMM_NAMES_64 HGEMM_NAMES_32 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define HGEMM_NAMES_80 HGEMM_NAMES_64 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define HGEMM_NAMES_96 HGEMM_NAMES_64 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define HGEMM_NAMES_128 \
  HGEMM_NAMES_96 ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define HGEMM_NAMES_160 \
  HGEMM_NAMES_128 ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"
#define HGEMM_NAMES_176 HGEMM_NAMES_160 ", %80, %81, %82, %83, %84, %85, %86, %87"
#define HGEMM_NAMES_192 \
  HGEMM_NAMES_160 ", %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define HGEMM_NAMES_200 HGEMM_NAMES_192 ", %96, %97, %98, %99"
#define HGEMM_NAMES_224 \
  HGEMM_NAMES_192 ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111"
#define HGEMM_NAMES_248 HGEMM_NAMES_224 ", %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123"
#define HGEMM_NAMES_256 \
  HGEMM_NAMES_224 ", %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define HGEMM_4(C, i) C(d[i]), C(d[i + 1]), C(d[i + 2]), C(d[i + 3])
#define HGEMM_16(C, i) HGEMM_4(C, i), HGEMM_4(C, i + 4), HGEMM_4(C, i + 8), HGEMM_4(C, i + 12)
#define HGEMM_OPERANDS_8(C) HGEMM_4(C, 0)
#define HGEMM_OPERANDS_16(C) HGEMM_4(C, 0), HGEMM_4(C, 4)
#define HGEMM_OPERANDS_32(C) HGEMM_16(C, 0)
#define HGEMM_OPERANDS_64(C) HGEMM_OPERANDS_32(C), HGEMM_16(C, 16)
#define HGEMM_OPERANDS_80(C) HGEMM_OPERANDS_64(C), HGEMM_4(C, 32), HGEMM_4(C, 36)
#define HGEMM_OPERANDS_96(C) HGEMM_OPERANDS_64(C), HGEMM_16(C, 32)
#define HGEMM_OPERANDS_128(C) HGEMM_OPERANDS_96(C), HGEMM_16(C, 48)
#define HGEMM_OPERANDS_160(C) HGEMM_OPERANDS_128(C), HGEMM_16(C, 64)
#define HGEMM_OPERANDS_176(C) HGEMM_OPERANDS_160(C), HGEMM_4(C, 80), HGEMM_4(C, 84)
#define HGEMM_OPERANDS_192(C) HGEMM_OPERANDS_160(C), HGEMM_16(C, 80)
#define HGEMM_OPERANDS_200(C) HGEMM_OPERANDS_192(C), HGEMM_4(C, 96)
#define HGEMM_OPERANDS_224(C) HGEMM_OPERANDS_192(C), HGEMM_16(C, 96)
#define HGEMM_OPERANDS_248(C) HGEMM_OPERANDS_224(C), HGEMM_4(C, 112), HGEMM_4(C, 116), HGEMM_4(C, 120)
#define HGEMM_OPERANDS_256(C) HGEMM_OPERANDS_224(C), HGEMM_16(C, 112)
// A, B, KEEP, TRANS_A and TRANS_B are the names of the operands that follow the accumulators.
#define HGEMM_WGMMA(N, TYPE, A, B, KEEP, TRANS_A, TRANS_B)                                                        \
  asm volatile("{\n.reg .pred keep;\nsetp.ne.b32 keep, " KEEP ", 0;\nwgmma.mma_async.sync.aligned.m64n" #N        \
               "k16.f32." TYPE "." TYPE " {" HGEMM_NAMES_##N "}, " A ", " B ", keep, 1, 1, " TRANS_A ", " TRANS_B \
                                                             ";\n}\n"                                             \
               : HGEMM_OPERANDS_##N("+f")                                                                         \
               : "l"(a), "l"(b), "r"(keep), "n"(kTransA), "n"(kTransB))

template <class T>
struct Wgmma;

/// m64k16<N, kTransA, kTransB>(d, a, b, keep): D (64 x N, float32) = A (64 x 16) * B (16 x N) + (keep ? D : 0). For
/// each group j of eight columns, lane l of warp w holds d[4 j] and d[4 j + 1] at row 16 w + l / 4, columns 8 j + 2 (l
/// % 4) and the next one, and d[4 j + 2] and d[4 j + 3] eight rows below. A transposed operand is MN-major in shared
/// memory.
#define HGEMM_WGMMA_OF(CLASS, TYPE)                                                                           \
  template <>                                                                                                 \
  struct Wgmma<CLASS> {                                                                                       \
    using Sum = float;                                                                                        \
    template <int N, int kTransA, int kTransB>                                                                \
    static __device__ __forceinline__ void m64k16(float (&d)[N / 2], uint64_t a, uint64_t b, uint32_t keep) { \
      if constexpr (N == 8) {                                                                                 \
        HGEMM_WGMMA(8, TYPE, "%4", "%5", "%6", "%7", "%8");                                                   \
      } else if constexpr (N == 16) {                                                                         \
        HGEMM_WGMMA(16, TYPE, "%8", "%9", "%10", "%11", "%12");                                               \
      } else if constexpr (N == 32) {                                                                         \
        HGEMM_WGMMA(32, TYPE, "%16", "%17", "%18", "%19", "%20");                                             \
      } else if constexpr (N == 64) {                                                                         \
        HGEMM_WGMMA(64, TYPE, "%32", "%33", "%34", "%35", "%36");                                             \
      } else if constexpr (N == 80) {                                                                         \
        HGEMM_WGMMA(80, TYPE, "%40", "%41", "%42", "%43", "%44");                                             \
      } else if constexpr (N == 96) {                                                                         \
        HGEMM_WGMMA(96, TYPE, "%48", "%49", "%50", "%51", "%52");                                             \
      } else if constexpr (N == 128) {                                                                        \
        HGEMM_WGMMA(128, TYPE, "%64", "%65", "%66", "%67", "%68");                                            \
      } else if constexpr (N == 160) {                                                                        \
        HGEMM_WGMMA(160, TYPE, "%80", "%81", "%82", "%83", "%84");                                            \
      } else if constexpr (N == 176) {                                                                        \
        HGEMM_WGMMA(176, TYPE, "%88", "%89", "%90", "%91", "%92");                                            \
      } else if constexpr (N == 192) {                                                                        \
        HGEMM_WGMMA(192, TYPE, "%96", "%97", "%98", "%99", "%100");                                           \
      } else if constexpr (N == 200) {                                                                        \
        HGEMM_WGMMA(200, TYPE, "%100", "%101", "%102", "%103", "%104");                                       \
      } else if constexpr (N == 224) {                                                                        \
        HGEMM_WGMMA(224, TYPE, "%112", "%113", "%114", "%115", "%116");                                       \
      } else if constexpr (N == 248) {                                                                        \
        HGEMM_WGMMA(248, TYPE, "%124", "%125", "%126", "%127", "%128");                                       \
      } else if constexpr (N == 256) {                                                                        \
        HGEMM_WGMMA(256, TYPE, "%128", "%129", "%130", "%131", "%132");                                       \
      } else {                                                                                                \
        static_assert(N == 0, "add a line for this N");                                                       \
      }                                                                                                       \
    }                                                                                                         \
  };
HGEMM_WGMMA_OF(__half, "f16")
HGEMM_WGMMA_OF(__nv_bfloat16, "bf16")
#undef HGEMM_WGMMA_OF

#define HGEMM_WGMMA_BF16_A(N, A0, A1, A2, A3, B, KEEP)                                                                 \
  asm volatile("{\n.reg .pred keep;\nsetp.ne.b32 keep, " KEEP ", 0;\nwgmma.mma_async.sync.aligned.m64n" #N             \
               "k16.f32.bf16.bf16 {" HGEMM_NAMES_##N "}, {" A0 ", " A1 ", " A2 ", " A3 "}, " B ", keep, 1, 1, 0;\n}\n" \
               : HGEMM_OPERANDS_##N("+f")                                                                              \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(keep))

/// m64k16 of bfloat16 with A in registers and a K-major B. Lane l of warp w has two neighbouring k of a row in each: k
/// from 2 (l % 4) on of row 16 w + l / 4; the same of the row eight below; and of both rows the k eight further on. The
/// instruction reads the registers until its group has ended.
template <int N>
__device__ __forceinline__ void wgmma_bf16_a(float (&d)[N / 2], const uint32_t (&a)[4], uint64_t b, uint32_t keep) {
  if constexpr (N == 32) {
    HGEMM_WGMMA_BF16_A(32, "%16", "%17", "%18", "%19", "%20", "%21");
  } else if constexpr (N == 64) {
    HGEMM_WGMMA_BF16_A(64, "%32", "%33", "%34", "%35", "%36", "%37");
  } else if constexpr (N == 96) {
    HGEMM_WGMMA_BF16_A(96, "%48", "%49", "%50", "%51", "%52", "%53");
  } else if constexpr (N == 128) {
    HGEMM_WGMMA_BF16_A(128, "%64", "%65", "%66", "%67", "%68", "%69");
  } else {
    static_assert(N == 0, "add a line for this N");
  }
}
#undef HGEMM_WGMMA_BF16_A

#define HGEMM_WGMMA_S8(N, A, B, KEEP)                                                                      \
  asm volatile("{\n.reg .pred keep;\nsetp.ne.b32 keep, " KEEP ", 0;\nwgmma.mma_async.sync.aligned.m64n" #N \
               "k32.s32.s8.s8 {" HGEMM_NAMES_##N "}, " A ", " B ", keep;\n}\n"                             \
               : HGEMM_OPERANDS_##N("+r")                                                                  \
               : "l"(a), "l"(b), "r"(keep))

#define HGEMM_WGMMA_S8_A(N, A0, A1, A2, A3, B, KEEP)                                                       \
  asm volatile("{\n.reg .pred keep;\nsetp.ne.b32 keep, " KEEP ", 0;\nwgmma.mma_async.sync.aligned.m64n" #N \
               "k32.s32.s8.s8 {" HGEMM_NAMES_##N "}, {" A0 ", " A1 ", " A2 ", " A3 "}, " B ", keep;\n}\n"  \
               : HGEMM_OPERANDS_##N("+r")                                                                  \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(keep))

/// Two int8 elements that are adjacent along K. Code that counts elements of 16 bits takes an int8 operand as pairs.
struct Int8Pair {
  int8_t x[2];
};

/// The same for 16 pairs along K, with int32 sums. The instruction takes K-major operands only.
template <>
struct Wgmma<Int8Pair> {
  using Sum = int32_t;
  template <int N, int kTransA, int kTransB>
  static __device__ __forceinline__ void m64k16(int32_t (&d)[N / 2], uint64_t a, uint64_t b, uint32_t keep) {
    static_assert(kTransA == 0 && kTransB == 0, "int8 operands are K-major");
    if constexpr (N == 32) {
      HGEMM_WGMMA_S8(32, "%16", "%17", "%18");
    } else if constexpr (N == 64) {
      HGEMM_WGMMA_S8(64, "%32", "%33", "%34");
    } else if constexpr (N == 128) {
      HGEMM_WGMMA_S8(128, "%64", "%65", "%66");
    } else if constexpr (N == 192) {
      HGEMM_WGMMA_S8(192, "%96", "%97", "%98");
    } else if constexpr (N == 256) {
      HGEMM_WGMMA_S8(256, "%128", "%129", "%130");
    } else {
      static_assert(N == 0, "add a line for this N");
    }
  }

  /// The same with A in registers. Lane l of warp w has four k of a row in each: k from 4 (l % 4) on of row 16 w + l /
  /// 4; the same of the row eight below; and of both rows the k 16 further on.
  template <int N>
  static __device__ __forceinline__ void m64k16_a(int32_t (&d)[N / 2], const uint32_t (&a)[4], uint64_t b,
                                                  uint32_t keep) {
    if constexpr (N == 32) {
      HGEMM_WGMMA_S8_A(32, "%16", "%17", "%18", "%19", "%20", "%21");
    } else if constexpr (N == 64) {
      HGEMM_WGMMA_S8_A(64, "%32", "%33", "%34", "%35", "%36", "%37");
    } else {
      static_assert(N == 0, "add a line for this N");
    }
  }
};
#undef HGEMM_WGMMA_S8_A
#undef HGEMM_WGMMA_S8
#undef HGEMM_WGMMA
#undef HGEMM_16
#undef HGEMM_4
#undef HGEMM_NAMES_8
#undef HGEMM_NAMES_16
#undef HGEMM_NAMES_32
#undef HGEMM_NAMES_64
#undef HGEMM_NAMES_80
#undef HGEMM_NAMES_96
#undef HGEMM_NAMES_128
#undef HGEMM_NAMES_160
#undef HGEMM_NAMES_176
#undef HGEMM_NAMES_192
#undef HGEMM_NAMES_200
#undef HGEMM_NAMES_224
#undef HGEMM_NAMES_248
#undef HGEMM_NAMES_256
#undef HGEMM_OPERANDS_8
#undef HGEMM_OPERANDS_16
#undef HGEMM_OPERANDS_32
#undef HGEMM_OPERANDS_64
#undef HGEMM_OPERANDS_80
#undef HGEMM_OPERANDS_96
#undef HGEMM_OPERANDS_128
#undef HGEMM_OPERANDS_160
#undef HGEMM_OPERANDS_176
#undef HGEMM_OPERANDS_192
#undef HGEMM_OPERANDS_200
#undef HGEMM_OPERANDS_224
#undef HGEMM_OPERANDS_248
#undef HGEMM_OPERANDS_256

}  // namespace hgemm::ptx
