// Batched float32 GEMM on tensor cores (sm_90a): wgmma on three bfloat16 planes of each operand, which are made on the
// way from shared memory.
//
// The sums are those of sm90_split (its kernel.cuh gives the reasons): one accumulator takes 64 k of the product of the
// first planes, and is then added to a float32 sum. A second accumulator beside each sum takes the five other products
// and the rounding errors of the sum.
//
// Small matrices are read once or twice, so a pass that writes planes would take longer than the product. Here cp.async
// copies float32 elements to shared memory, in any memory order and alignment. The warpgroup splits the elements of B
// from there into planes, which wgmma reads from shared memory, and those of A into registers, where wgmma takes them
// as well. So each element is split once. The blocks of an SM hide each other's barriers: one splits while another
// multiplies.
//
// The kernel is persistent, and its pipeline of STAGES k-tiles goes on into the next output tile, so that neither a
// short K nor an epilogue leaves the memory idle. Rows and columns beyond M and N are not loaded, and their results are
// not stored. Only K is padded with zeros.
//
// Order of k and of columns. A lane of wgmma has the k 2 t, 2 t + 1, 2 t + 8 and 2 t + 9 of 16, where t is lane % 4.
// Here these are the k 4 t to 4 t + 3, so that the lane reads 16 bytes of a K-major A. The planes of B have the same
// order. Columns are permuted, too (column_of): a lane has four neighbours in D, and stores 16 bytes.
//
// Results that planes cannot represent are computed again in float64: those that are not finite, or tiny, and those of
// rows of A and columns of B whose elements are too small for planes (is_tiny).
//
// All threads of the block meet
//
//   once                     when the stages have been cleared
//   for each k-tile          when it has arrived, which also says that nobody reads the previous one or its planes
//                            when the planes of B are written
//   for each output tile     when all wgmma have ended, for the scratch takes the place of the planes
#pragma once

#include <cmath>
#include <cstdint>

#include "core/fast_divisor.h"
#include "core/problem.h"
#include "kernels/batched_mma/sm90_split_config.h"
#include "ptx/cp_async.cuh"
#include "ptx/dependent_launch.cuh"
#include "ptx/float32.cuh"
#include "ptx/shared.cuh"
#include "ptx/smem_addr.cuh"
#include "ptx/tma.cuh"
#include "ptx/wgmma.cuh"
#include "tile/epilogue.cuh"
#include "tile/split_product.cuh"
#include "tile/split_sums.cuh"

namespace hgemm::batched_split {

namespace split = tile::split;

/// The compile-time parameters of the kernel: Config, memory orders of A and B, alignment.
template <class Config_, Major kMajorA_, Major kMajorB_, bool kWide_>
struct Traits : Config_ {
  static constexpr Major kMajorA = kMajorA_, kMajorB = kMajorB_;
  static constexpr bool kWide = kWide_;  // the operands are is_wide()
};

/// The run-time parameters. Strides count elements.
struct Params {
  const float *a, *b;
  int64_t lda, ldb;
  int pitch_a, pitch_b;            // lda and ldb in bytes
  int64_t a_batch[2], b_batch[2];  // batch strides, outer and inner
  int m, n, k;
  FastDivisor tiles_m, tiles_n, batch_inner;
  uint32_t tiles;  // output tiles of all matrices
  bool is_plain;   // the epilogue only multiplies by alpha
  bool wide_d;     // D consists of whole aligned 16-byte chunks
  tile::EpilogueParams epilogue;
};

constexpr int kCarryTiles = 32;  // k-tiles from one TwoSums::carry() to the next

/// Magnitudes, as bits of a float32: see split_pass.cu. A row whose kSegment k have an element smaller than kTiny, and
/// none of at least kPlain, is not multiplied by planes.
constexpr uint32_t kTiny = (127 - 110) << 23, kPlain = (127 - 80) << 23;
constexpr int kSegment = 64;

/// An output tile: its first row and column, and its matrix of the batch.
struct Work {
  int m0, n0;
  uint32_t outer, inner;

  __device__ __forceinline__ int64_t offset(const int64_t (&batch_stride)[2]) const {
    return outer * batch_stride[0] + inner * batch_stride[1];
  }
};

template <class Traits>
__device__ __forceinline__ Work work_at(const Params& p, uint32_t tile) {
  const uint32_t rows = p.tiles_n.quotient(tile), col = tile - rows * p.tiles_n.divisor();
  const uint32_t batch = p.tiles_m.quotient(rows), row = rows - batch * p.tiles_m.divisor();
  const uint32_t outer = p.batch_inner.quotient(batch), inner = batch - outer * p.batch_inner.divisor();
  return {static_cast<int>(row) * Traits::BM, static_cast<int>(col) * Traits::BN, outer, inner};
}

/// The row of the output tile that the instruction's row `row` stands for. Of each eight rows, those that two groups of
/// four lanes read at the same time are four apart.
__device__ __forceinline__ int row_of(int row) {
  return row / 8 * 8 + row % 2 * 4 + row % 8 / 2;
}

/// The column of the output tile that the instruction's column `col` stands for.
__device__ __forceinline__ int column_of(int col) {
  return col / 16 * 16 + col % 8 / 2 * 4 + col / 8 % 2 * 2 + col % 2;
}

/// A k-tile of an operand in shared memory: EXTENT rows of A or columns of B, "rows" here. Lines of 32 k K-major, of
/// EXTENT rows MN-major, whose chunks of 16 bytes are swizzled for the reads in split_a() and split_b().
template <int EXTENT, Major kMajor, bool kIsA>
struct FloatTile {
  static constexpr int BK = 32;
  static constexpr bool kIsKMajor = kMajor == Major::kK;
  static constexpr int kLines = kIsKMajor ? EXTENT : BK, kLine = kIsKMajor ? BK : EXTENT;

  static __device__ __forceinline__ int swizzled(int line, int chunk) {
    return chunk ^ (!kIsKMajor ? line / 4 % 4 * 2 : kIsA ? line % 8 : line % 2 + line / 4 % 4 * 2);
  }
  /// The offset of an element in bytes. K-major, 16 bytes are read from k, a multiple of 4, on.
  static __device__ __forceinline__ int offset(int row, int k) {
    const int line = kIsKMajor ? row : k, at = kIsKMajor ? k : row;
    return line * kLine * 4 + swizzled(line, at / 4) * 16 + at % 4 * 4;
  }
  /// Loads four k of a row, from k, a multiple of 4, on. `tile`: the shared address of the k-tile.
  static __device__ __forceinline__ void load(float (&x)[4], uint32_t tile, int row, int k) {
    if constexpr (kIsKMajor) {
      ptx::ld_shared_16(x, tile + offset(row, k));
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) x[i] = __uint_as_float(ptx::ld_shared_4(tile + offset(row, k) + i * kLine * 4));
    }
  }
};

/// Starts copying BK k of `rows` rows, the first one at `from`, to the k-tile at shared address `to`. There are `left`
/// k, and zeros behind. `pitch`: bytes from one line of the matrix to the next.
template <class Tile, int THREADS, bool kWide>
__device__ __forceinline__ void fetch(uint32_t to, const unsigned char* from, int pitch, int rows, int left) {
  constexpr int kCopied = kWide ? 4 : 1, kCopies = Tile::kLine / kCopied;  // elements of a copy, copies of a line
  constexpr int kLinesPerPass = THREADS / kCopies, kPasses = Tile::kLines / kLinesPerPass;
  static_assert(THREADS % kCopies == 0 && Tile::kLines % kLinesPerPass == 0);
  const int thread = static_cast<int>(ptx::opaque(threadIdx.x));  // its parts would take registers all the time
  const int line0 = thread / kCopies, at = thread % kCopies * kCopied;
  if (!Tile::kIsKMajor && at >= rows) return;
  constexpr int kUnroll = kWide ? kPasses : 4;
#pragma unroll kUnroll
  for (int i = 0; i < kPasses; ++i) {
    const int line = line0 + i * kLinesPerPass;
    if (Tile::kIsKMajor && line >= rows) break;
    const unsigned char* const src = from + int64_t{line} * pitch + 4 * at;
    const bool inside = (Tile::kIsKMajor ? at : line) < left;
    const uint32_t dst = to + (Tile::kIsKMajor ? Tile::offset(line, at) : Tile::offset(at, line));
    if constexpr (kWide) {
      ptx::cp_async_16(dst, src, inside);
    } else {
      ptx::cp_async<4>(dst, src, inside);
    }
  }
}

/// The least magnitude of the elements that are not zero: twice its bits, less one.
struct Least {
  uint32_t bits = ~0u;

  __device__ __forceinline__ void add(const float (&x)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t of_x = __float_as_uint(x[i]);
      bits = min(bits, of_x + of_x - 1);
    }
  }
  __device__ __forceinline__ bool is_tiny() const { return bits < 2 * kTiny - 1; }
};

/// Splits two neighbours along K into planes: pairs of bfloat16.
__device__ __forceinline__ void split_in_registers(float a, float b, uint32_t (&planes)[split::kPlanes]) {
#pragma unroll
  for (int plane = 0; plane < split::kPlanes; ++plane) {
    planes[plane] = ptx::pack_bf16(a, b);
    a -= __uint_as_float(planes[plane] << 16);
    b -= __uint_as_float(planes[plane] & 0xffff0000);
  }
}

/// The planes of A in a k-tile, as wgmma takes them from registers: [k16 step][plane].
using PlanesA = uint32_t[2][split::kPlanes][4];
template <class Tile>
__device__ __forceinline__ void split_a(uint32_t tile, PlanesA& planes, Least& least) {
  const int thread = static_cast<int>(ptx::opaque(threadIdx.x)), lane = thread % 32;
  const int row = thread / 32 * 16 + row_of(lane / 4);
#pragma unroll
  for (int step = 0; step < 2; ++step) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float x[4];
      Tile::load(x, tile, row + 8 * i, 16 * step + lane % 4 * 4);
      least.add(x);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        uint32_t of_pair[split::kPlanes];
        split_in_registers(x[2 * half], x[2 * half + 1], of_pair);
#pragma unroll
        for (int plane = 0; plane < split::kPlanes; ++plane) planes[step][plane][2 * half + i] = of_pair[plane];
      }
    }
  }
}

/// Writes the planes of B in a k-tile to shared address `planes`, into half `half` of the lines. A thread splits 16 k
/// of one column.
template <class Config, class Tile>
__device__ __forceinline__ void split_b(uint32_t tile, uint32_t planes, int half, Least& least) {
  const int thread = static_cast<int>(ptx::opaque(threadIdx.x));
  const int col = thread % Config::BN, step = thread / Config::BN;
  uint32_t chunks[split::kPlanes][2][4];  // of 8 k
#pragma unroll
  for (int t = 0; t < 4; ++t) {
    float x[4];
    Tile::load(x, tile, column_of(col), 16 * step + 4 * t);
    least.add(x);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      uint32_t of_pair[split::kPlanes];
      split_in_registers(x[2 * i], x[2 * i + 1], of_pair);
#pragma unroll
      for (int plane = 0; plane < split::kPlanes; ++plane) chunks[plane][i][t] = of_pair[plane];
    }
  }
#pragma unroll
  for (int plane = 0; plane < split::kPlanes; ++plane) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int chunk = half * 4 + step * 2 + i;
      ptx::st_shared_16(planes + plane * Config::kPlaneBytes + col * Config::kLine + (chunk ^ col % 8) * 16,
                        chunks[plane][i]);
    }
  }
}

/// A row of A or a column of B in memory.
struct Row {
  const float* x;
  int64_t stride;  // from one k to the next
};

/// True if a row has a segment whose elements are too small for planes.
__device__ __forceinline__ bool is_tiny(const Row& row, int k) {
  for (int first = 0; first < k; first += kSegment) {
    uint32_t least = ~0u, most = 0;
#pragma unroll 4
    for (int i = first; i < min(first + kSegment, k); ++i) {
      const uint32_t bits = __float_as_uint(row.x[i * row.stride]) & 0x7fffffff;
      least = min(least, bits - 1);
      most = max(most, bits);
    }
    if (least < kTiny - 1 && most < kPlain) return true;
  }
  return false;
}

/// The sum over K of the products of a row of A and a column of B in float64. A sum beyond the largest float32 becomes
/// infinite, as it does in float32.
__device__ __forceinline__ float exact_sum(const Row& a, const Row& b, int k) {
  constexpr double kLargest = 3.40282346638528859811704183484516925440e+38;
  double sum = 0;
#pragma unroll 4
  for (int i = 0; i < k; ++i) {
    sum = fma(double{a.x[i * a.stride]}, double{b.x[i * b.stride]}, sum);
    if (fabs(sum) > kLargest) sum = copysign(double{INFINITY}, sum);
  }
  return static_cast<float>(sum);
}

/// Writes act(alpha * sum + beta * C + bias) to D for an output tile. `tiny`: elements of the operands may be too small
/// for planes.
template <class Traits>
__device__ __forceinline__ void emit(const Params& p, const Work& work, bool tiny, const float (&sums)[32],
                                     float* scratch) {
  const tile::EpilogueParams& e = p.epilogue;
  const int lane = threadIdx.x % 32, group = lane / 4, t = lane % 4;
  float* const d = static_cast<float*>(e.d) + work.offset(e.d_batch);
  // This lane's columns col + 16 i .. + 3 of the row `row`, or the one eight below.
  const auto four = [&](int half, int i) {
    const float* const x = sums + 8 * i + 2 * half;
    return make_float4(x[0], x[1], x[4], x[5]);
  };
  const int row0 = work.m0 + static_cast<int>(threadIdx.x) / 32 * 16, row = row0 + row_of(group), col = work.n0 + 4 * t;
  bool is_bad = tiny;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float4 x = four(half, i);
      const int first = col + 16 * i;
      if (row + 8 * half < p.m) {
        is_bad |= (first < p.n && !split::is_held(x.x)) || (first + 1 < p.n && !split::is_held(x.y)) ||
                  (first + 2 < p.n && !split::is_held(x.z)) || (first + 3 < p.n && !split::is_held(x.w));
      }
    }
  }
  is_bad = __any_sync(~0u, is_bad);
  if (p.is_plain && p.wide_d && !is_bad) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float4 x = four(half, i);
        if (row + 8 * half >= p.m || col + 16 * i >= p.n) continue;
        *reinterpret_cast<float4*>(d + (row + 8 * half) * e.ldd + col + 16 * i) =
            make_float4(x.x * e.alpha, x.y * e.alpha, x.z * e.alpha, x.w * e.alpha);
      }
    }
    return;
  }
  // Eight rows at a time go through `scratch`, so that a warp writes whole lines.
#pragma unroll 1
  for (int half = 0; half < 2; ++half) {
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      // The sums are in registers, so their indices are constants.
      const float4 x = four(0, i), y = four(1, i);
      reinterpret_cast<float4*>(scratch + row_of(group) * Traits::kScratchRow)[4 * i + t] = half == 0 ? x : y;
    }
    __syncwarp();
    const int first = row0 + 8 * half;
    if (p.is_plain && !is_bad) {
#pragma unroll
      for (int i = 0; i < 2 * Traits::kScratchRows; ++i) {
        const int at = first + i / 2, of_lane = work.n0 + i % 2 * 32 + lane;
        if (at < p.m && of_lane < p.n) {
          d[at * e.ldd + of_lane] = scratch[i / 2 * Traits::kScratchRow + i % 2 * 32 + lane] * e.alpha;
        }
      }
      continue;
    }
#pragma unroll 1
    for (int i = 0; i < 2 * Traits::kScratchRows; ++i) {
      const int at = first + i / 2, of_lane = work.n0 + i % 2 * 32 + lane;
      if (at >= p.m || of_lane >= p.n) continue;
      float v = scratch[i / 2 * Traits::kScratchRow + i % 2 * 32 + lane];
      if (is_bad) {
        constexpr bool ka = Traits::kMajorA == Major::kK, kb = Traits::kMajorB == Major::kK;
        const Row a{p.a + work.offset(p.a_batch) + (ka ? at * p.lda : at), ka ? 1 : p.lda};
        const Row b{p.b + work.offset(p.b_batch) + (kb ? of_lane * p.ldb : of_lane), kb ? 1 : p.ldb};
        if (!split::is_held(v) || (tiny && (is_tiny(a, p.k) || is_tiny(b, p.k)))) v = exact_sum(a, b, p.k);
      }
      v *= e.alpha;
      if (e.c != nullptr) {
        v = fmaf(e.beta, static_cast<const float*>(e.c)[work.offset(e.c_batch) + at * e.c_row + of_lane * e.c_col], v);
      }
      if (e.bias != nullptr) v += static_cast<const float*>(e.bias)[of_lane];
      const int64_t to = work.offset(e.d_batch) + at * e.ldd + of_lane;
      if (e.pre_activation != nullptr) static_cast<float*>(e.pre_activation)[to] = v;
      static_cast<float*>(e.d)[to] = tile::activate(v, e.act);
    }
  }
}

template <class Traits>
__global__ void __launch_bounds__(Traits::kThreads, Traits::RESIDENT) kernel(const __grid_constant__ Params p) {
  constexpr int BK = Traits::BK, STAGES = Traits::STAGES;
  using TileA = FloatTile<Traits::BM, Traits::kMajorA, true>;
  using TileB = FloatTile<Traits::BN, Traits::kMajorB, false>;
  extern __shared__ __align__(1024) unsigned char smem[];  // planes of B, STAGES x { A, B }
  const uint32_t planes = ptx::smem_addr(smem), ring = planes + Traits::kPlanesBytes;
  float* const scratch = reinterpret_cast<float*>(smem + threadIdx.x / 32 * Traits::kScratchBytes);

  // Rows beyond M and N are not loaded, but threads look for tiny elements in them.
  for (int i = threadIdx.x * 16; i < STAGES * Traits::kStageBytes; i += Traits::kThreads * 16) {
    ptx::st_shared_16(ring + i, {0, 0, 0, 0});
  }
  __syncthreads();

  uint32_t fetched = blockIdx.x;  // the output tile whose k-tiles are being fetched
  int fetched_k = 0, rows_a = 0, rows_b = 0;
  const unsigned char *from_a = nullptr, *from_b = nullptr;
  const auto begin_fetching = [&] {
    const Work work = work_at<Traits>(p, fetched);
    fetched_k = 0;
    rows_a = p.m - work.m0;
    rows_b = p.n - work.n0;
    from_a = reinterpret_cast<const unsigned char*>(p.a + work.offset(p.a_batch) +
                                                    (TileA::kIsKMajor ? work.m0 * p.lda : work.m0));
    from_b = reinterpret_cast<const unsigned char*>(p.b + work.offset(p.b_batch) +
                                                    (TileB::kIsKMajor ? work.n0 * p.ldb : work.n0));
  };
  const auto fetch_next = [&](int stage) {
    if (fetched < p.tiles) {
      const uint32_t to = ring + stage * Traits::kStageBytes;
      const int left = p.k - fetched_k;
      fetch<TileA, Traits::kThreads, Traits::kWide>(to, from_a, p.pitch_a, rows_a, left);
      fetch<TileB, Traits::kThreads, Traits::kWide>(to + Traits::kBytesA, from_b, p.pitch_b, rows_b, left);
      fetched_k += BK;
      from_a += TileA::kIsKMajor ? 4 * BK : int64_t{BK} * p.pitch_a;
      from_b += TileB::kIsKMajor ? 4 * BK : int64_t{BK} * p.pitch_b;
      if (fetched_k >= p.k) {
        fetched += gridDim.x;
        if (fetched < p.tiles) begin_fetching();
      }
    }
    ptx::cp_async_commit();
  };

  ptx::grid_dependency_wait();
  ptx::grid_launch_dependents();
  begin_fetching();
#pragma unroll 1
  for (int s = 0; s < STAGES - 1; ++s) fetch_next(s);

  int stage = 0;
  const uint64_t of_b = ptx::wgmma_descriptor(planes, 0, 8 * Traits::kLine);
  for (uint32_t tile = blockIdx.x; tile < p.tiles; tile += gridDim.x) {
    split::TwoSums<Traits::BN / 2> sums;
    sums.clear();
    float first[Traits::BN / 2];  // the accumulator of the first planes' product
    Least least;
#pragma unroll 1
    for (int kt = 0; kt * BK < p.k; ++kt) {
      ptx::cp_async_wait<STAGES - 2>();
      __syncthreads();  // this k-tile has arrived for all, and no thread reads the previous one any more
      fetch_next(stage == 0 ? STAGES - 1 : stage - 1);
      const uint32_t at = ring + stage * Traits::kStageBytes;
      stage = stage + 1 == STAGES ? 0 : stage + 1;
      split_b<Traits, TileB>(at + Traits::kBytesA, planes, kt % 2, least);
      ptx::fence_proxy_async();
      __syncthreads();
      ptx::wgmma_wait<0>();
      if (kt > 0 && kt % 2 == 0) {
        sums.add_first(first);
        sums.add_rest(first);
        if (kt % kCarryTiles == 0) sums.carry();
      }
      PlanesA of_a;
      split_a<TileA>(at, of_a, least);
      ptx::wgmma_fence();
#pragma unroll
      for (int step = 0; step < 2; ++step) {
        const auto plane = [&](int i) {
          return ptx::wgmma_advance(of_b, i * Traits::kPlaneBytes + kt % 2 * 64 + step * 32);
        };
        ptx::wgmma_bf16_a<Traits::BN>(first, of_a[step][0], plane(0), kt % 2 + step > 0);
        // The five smaller products, in ascending order of magnitude.
        ptx::wgmma_bf16_a<Traits::BN>(sums.low, of_a[step][2], plane(0), 1);
        ptx::wgmma_bf16_a<Traits::BN>(sums.low, of_a[step][1], plane(1), 1);
        ptx::wgmma_bf16_a<Traits::BN>(sums.low, of_a[step][0], plane(2), 1);
        ptx::wgmma_bf16_a<Traits::BN>(sums.low, of_a[step][1], plane(0), 1);
        ptx::wgmma_bf16_a<Traits::BN>(sums.low, of_a[step][0], plane(1), 1);
      }
      ptx::wgmma_commit();
    }
    ptx::wgmma_wait<0>();
    sums.add_first(first);
    sums.add_rest(first);
#pragma unroll
    for (int i = 0; i < Traits::BN / 2; ++i) sums.high[i] += sums.low[i];
    const bool tiny = __syncthreads_or(least.is_tiny());
    emit<Traits>(p, work_at<Traits>(p, tile), tiny, sums.high, scratch);
  }
}

}  // namespace hgemm::batched_split
