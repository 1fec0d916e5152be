// Parts shared by the tensor-core steps 06 to 08: kernel arguments, layouts of tiles in shared memory, copies into
// them, the raster order, and launches.
#pragma once

#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "core/launch.cuh"
#include "core/problem.h"
#include "ladder/ladder.h"
#include "ptx/cp_async.cuh"
#include "ptx/shared.cuh"
#include "ptx/smem_addr.cuh"
#include "tile/raster.cuh"
#include "tile/swizzle.cuh"

namespace hgemm::ladder {

/// D (m, n) = A (m, k) @ B (k, n), all row-major. D is contiguous.
struct Gemm {
  const __half *a, *b;
  __half* d;
  int64_t lda, ldb;
  int m, n, k;
  uint32_t tiles_m, tiles_n;
  uint32_t panel;        // width of a panel in tiles (panel_raster)
  bool fragments_fit_d;  // a WMMA fragment may be stored straight to D
  bool pairs_fit_d;      // two elements at an even column may be stored in one access
  bool chunks_fit_d;     // and so may eight at a column that is a multiple of 8
};

/// A tile with COLS elements per row. `offset` returns the bytes to a 16-byte chunk. `move` adds rows, a multiple of
/// 16, and chunks to such an offset; the chunks that it adds must not share bits with the first chunk's index.
template <int COLS, int PAD>
struct Rows {
  static constexpr int kPitch = COLS + PAD;  // elements
  static __device__ __forceinline__ uint32_t offset(int row, int chunk) { return (row * kPitch + chunk * 8) * 2; }
  static __device__ __forceinline__ uint32_t move(uint32_t offset, int rows, int chunks) {
    return offset + (rows * kPitch + chunks * 8) * 2;
  }
};
template <int COLS>
struct Plain : Rows<COLS, 0> {};
/// Eight more elements per row shift each row by four banks, so that the eight rows of an 8x8 matrix lie in different
/// banks.
/// NOTE: every second row leaves the grid of 32-byte sectors, so that cp.async fetches 1.4 to 1.5 times the sectors.
template <int COLS>
struct Padded : Rows<COLS, 8> {};
/// Avoids the same conflicts without padding: an XOR permutes the chunks of a row (tile/swizzle.cuh).
template <int COLS>
struct Xor {
  static constexpr int kPitch = COLS;
  static __device__ __forceinline__ uint32_t offset(int row, int chunk) {
    return tile::Swizzle<COLS>::offset(row, chunk);
  }
  static __device__ __forceinline__ uint32_t move(uint32_t offset, int rows, int chunks) {
    return (offset ^ (chunks * 16)) + rows * COLS * 2;
  }
};

/// How a thread copies its chunks from global to shared memory: 16 bytes through registers, 16 bytes that bypass
/// registers (cp.async), or, where rows do not start on 16 bytes, element by element.
enum class Fetch { kRegisters, kAsync, kElements };

/// Copies (ROWS, COLS) tiles of a matrix. Elements outside the matrix arrive as zeros.
template <class Shape, Fetch kFetch>
class TileFetch {
  static constexpr int kChunks = Shape::COLS / 8;  // per row
  static constexpr int kRowsPerPass = std::min(Shape::kThreads / kChunks, Shape::ROWS);
  static constexpr int kPasses = Shape::ROWS / kRowsPerPass;
  static constexpr bool kAllCopy = kRowsPerPass * kChunks == Shape::kThreads;
  static_assert(Shape::kThreads % kChunks == 0 && Shape::ROWS % kRowsPerPass == 0);

 public:
  /// `matrix` has (rows, cols) elements; the first tile starts at (row, col).
  __device__ __forceinline__ TileFetch(const __half* matrix, int64_t ld, int row, int col, int rows, int cols)
      : ld_(ld), row_(threadIdx.x / kChunks), chunk_(threadIdx.x % kChunks) {
    at_ = matrix + (row + row_) * ld + col + chunk_ * 8;
    rows_left_ = rows - row - row_;
    cols_left_ = cols - col - chunk_ * 8;
  }

  /// Copies the current tile to the shared address `dst` and advances to the next tile.
  __device__ __forceinline__ void operator()(uint32_t dst) {
    if (kAllCopy || row_ < kRowsPerPass) copy(dst);
    at_ += Shape::ROW_STEP * ld_ + Shape::COL_STEP;
    rows_left_ -= Shape::ROW_STEP;
    cols_left_ -= Shape::COL_STEP;
  }

 private:
  struct Words {
    uint32_t w[4];
  };
  __device__ __forceinline__ uint32_t offset(int pass) const {
    return Shape::Layout::offset(row_ + pass * kRowsPerPass, chunk_);
  }
  __device__ __forceinline__ const __half* chunk(int pass) const { return at_ + pass * kRowsPerPass * ld_; }
  __device__ __forceinline__ bool is_inside(int pass) const {
    return pass * kRowsPerPass < rows_left_ && cols_left_ > 0;
  }
  __device__ __forceinline__ void copy(uint32_t dst) const {
    if constexpr (kFetch == Fetch::kAsync) {
#pragma unroll
      for (int i = 0; i < kPasses; ++i) ptx::cp_async_16(dst + offset(i), chunk(i), is_inside(i));
    } else if constexpr (kFetch == Fetch::kRegisters) {
      uint4 chunks[kPasses];  // all loads come first, since a store would wait for the load before it
#pragma unroll
      for (int i = 0; i < kPasses; ++i) {
        chunks[i] = is_inside(i) ? *reinterpret_cast<const uint4*>(chunk(i)) : uint4{};
      }
#pragma unroll
      for (int i = 0; i < kPasses; ++i) {
        ptx::st_shared_16(dst + offset(i), {chunks[i].x, chunks[i].y, chunks[i].z, chunks[i].w});
      }
    } else {
#pragma unroll 1
      for (int i = 0; i < kPasses; ++i) ptx::st_shared_16(dst + offset(i), elements(i).w);
    }
  }
  __device__ __forceinline__ Words elements(int pass) const {
    const auto* from = reinterpret_cast<const unsigned short*>(chunk(pass));
    const int count = is_inside(pass) ? cols_left_ : 0;
    Words words;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t low = 2 * i < count ? from[2 * i] : 0;
      const uint32_t high = 2 * i + 1 < count ? from[2 * i + 1] : 0;
      words.w[i] = low | high << 16;
    }
    return words;
  }

  const __half* at_;  // this thread's first chunk
  int64_t ld_;
  int row_, chunk_;            // position of that chunk in the tile
  int rows_left_, cols_left_;  // from that chunk to the end of the matrix
};

/// The tile of block `id`: row by row inside panels of `panel` tile columns. Blocks that run at the same time then
/// cover a patch of C instead of a stripe, and share rows of A and columns of B in L2.
__device__ __forceinline__ tile::TileCoord panel_raster(uint32_t id, uint32_t tiles_m, uint32_t tiles_n,
                                                        uint32_t panel) {
  const uint32_t first = id / (panel * tiles_m) * panel;
  const uint32_t in_panel = id - first * tiles_m;
  const uint32_t width = min(panel, tiles_n - first);
  const uint32_t row = in_panel / width;
  return {static_cast<int>(row), static_cast<int>(first + in_panel - row * width)};
}

/// How a block's shared memory is declared. Up to 48 KB may be static; more must be dynamic and needs the opt-in of
/// cudaFuncSetAttribute.
enum class Memory { kStatic, kDynamic };

/// The constants of a line of variants.inc that its kernel depends on. Lines that differ in nothing else, such as a
/// step and the one that walks D in panels, share a kernel. A warp tile has (BM / WARPS_M, BN / WARPS_N) elements and
/// consists of fragments of (FRAG_M, FRAG_N).
template <int BM_, int BN_, int BK_, int STAGES_, int THREADS_, int SMEM_, int FRAG_M_, int FRAG_N_, int WARPS_M_,
          int WARPS_N_, template <int> class Layout_, Memory kMemory, Arithmetic kSums_>
struct TensorCoreLine {
  static constexpr int BM = BM_, BN = BN_, BK = BK_, STAGES = STAGES_, THREADS = THREADS_, SMEM = SMEM_;
  static constexpr int FRAG_M = FRAG_M_, FRAG_N = FRAG_N_, WARPS_M = WARPS_M_, WARPS_N = WARPS_N_;
  static constexpr bool kDynamicSmem = kMemory == Memory::kDynamic;
  static constexpr Arithmetic kSums = kSums_;
  template <int COLS>
  using Layout = Layout_<COLS>;
};

/// Defines Line_NAME, the TensorCoreLine of a line, and kSwizzles_NAME.
#define TENSOR_CORE_LINE(NAME, DTYPE, ACC, UNIT, BM, BN, BK, STAGES, THREADS, SMEM, SWIZZLES, FRAG_M, FRAG_N, WARPS_M, \
                         WARPS_N, LAYOUT, MEMORY)                                                                      \
  using Line_##NAME = TensorCoreLine<BM, BN, BK, STAGES, THREADS, SMEM, FRAG_M, FRAG_N, WARPS_M, WARPS_N, LAYOUT,      \
                                     Memory::k##MEMORY, Arithmetic::kAccumulate##ACC>;                                 \
  constexpr bool kSwizzles_##NAME = SWIZZLES != 0

/// The constants that follow from a line.
template <class Line>
struct Traits : Line {
  using Line::BK;
  using Line::BM;
  using Line::BN;
  static constexpr int kThreads = Line::WARPS_M * Line::WARPS_N * 32;
  static constexpr int WM = BM / Line::WARPS_M, WN = BN / Line::WARPS_N;  // warp tile
  static constexpr int kSteps = BK / 16;
  struct ShapeA {
    using Layout = typename Line::template Layout<Line::BK>;
    static constexpr int ROWS = Line::BM, COLS = Line::BK, ROW_STEP = 0, COL_STEP = Line::BK;
    static constexpr int kThreads = Line::WARPS_M * Line::WARPS_N * 32, kBytes = ROWS * Layout::kPitch * 2;
  };
  struct ShapeB {
    using Layout = typename Line::template Layout<Line::BN>;
    static constexpr int ROWS = Line::BK, COLS = Line::BN, ROW_STEP = Line::BK, COL_STEP = 0;
    static constexpr int kThreads = Line::WARPS_M * Line::WARPS_N * 32, kBytes = ROWS * Layout::kPitch * 2;
  };
  static constexpr int kStageBytes = ShapeA::kBytes + ShapeB::kBytes;
  static constexpr int kRingBytes = std::max(1, Line::STAGES) * kStageBytes;
  static_assert(Line::THREADS == kThreads && BK % 16 == 0);
  static_assert(Line::kDynamicSmem || Line::SMEM <= 48 * 1024);
};

/// The block's shared memory: one ring of { A, B }, which the epilogue reuses as scratch.
template <class Traits>
__device__ __forceinline__ unsigned char* block_memory() {
  if constexpr (Traits::kDynamicSmem) {
    extern __shared__ __align__(1024) unsigned char dynamic[];
    return dynamic;
  } else {
    __shared__ __align__(1024) unsigned char fixed[Traits::SMEM];
    return fixed;
  }
}

inline bool is_aligned(const void* p, uintptr_t bytes) {
  return reinterpret_cast<uintptr_t>(p) % bytes == 0;
}

/// True if every 16-byte chunk of A, B and D is aligned and lies either wholly inside or wholly outside its matrix.
inline bool has_whole_chunks(const Problem& p) {
  return is_aligned(p.a.data, 16) && is_aligned(p.b.data, 16) && is_aligned(p.d.data, 16) && p.k % 8 == 0 &&
         p.n % 8 == 0 && p.a.row_stride % 8 == 0 && p.b.row_stride % 8 == 0;
}

/// WMMA takes 32-bit strides. Up to this stride the 32 rows of a fragment span at most 2^32 bytes.
constexpr int64_t kMaxFragmentStride = int64_t{1} << 26;

/// Columns of a panel: swizzle_stride where it is set, else a quarter of D. A step that does not swizzle has one panel.
inline int64_t panel_columns(const StepProblem& p, bool swizzles) {
  if (!swizzles) return p.n;
  return p.swizzle_stride > 0 ? p.swizzle_stride : (p.n + 3) / 4;
}

inline Gemm gemm_of(const Problem& p, int bm, int bn, int64_t panel_columns) {
  const int64_t tiles_m = (p.m + bm - 1) / bm, tiles_n = (p.n + bn - 1) / bn;
  Gemm g{};
  g.a = static_cast<const __half*>(p.a.data);
  g.b = static_cast<const __half*>(p.b.data);
  g.d = static_cast<__half*>(p.d.data);
  g.lda = p.a.row_stride;
  g.ldb = p.b.row_stride;
  g.m = static_cast<int>(p.m);
  g.n = static_cast<int>(p.n);
  g.k = static_cast<int>(p.k);
  g.tiles_m = static_cast<uint32_t>(tiles_m);
  g.tiles_n = static_cast<uint32_t>(tiles_n);
  g.panel = static_cast<uint32_t>(std::min(tiles_n, (panel_columns + bn - 1) / bn));
  g.fragments_fit_d = is_aligned(p.d.data, 32) && p.n % 8 == 0 && p.n <= kMaxFragmentStride;
  g.pairs_fit_d = is_aligned(p.d.data, 4) && p.n % 2 == 0;
  g.chunks_fit_d = is_aligned(p.d.data, 16) && p.n % 8 == 0;
  return g;
}

/// Enqueues a kernel with one block per tile.
inline Status launch_tiles(void (*kernel)(Gemm), const Gemm& g, int threads, int dynamic_smem, Stream stream) {
  if (dynamic_smem > 0) {
    const cudaError_t e = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, dynamic_smem);
    if (e != cudaSuccess) return e;
  }
  return enqueue(kernel, g.tiles_m * g.tiles_n, threads, dynamic_smem, static_cast<cudaStream_t>(stream), g);
}

/// Enqueues the kernel of a body that is compiled twice: `chunks` requires has_whole_chunks, `elements` takes any
/// alignment. If `swizzles`, it walks D in panels.
template <class Traits>
Status launch_body(void (*chunks)(Gemm), void (*elements)(Gemm), bool swizzles, const StepProblem& p, Stream stream) {
  const Gemm g = gemm_of(p, Traits::BM, Traits::BN, panel_columns(p, swizzles));
  return launch_tiles(has_whole_chunks(p) ? chunks : elements, g, Traits::kThreads,
                      Traits::kDynamicSmem ? Traits::SMEM : 0, stream);
}

}  // namespace hgemm::ladder
