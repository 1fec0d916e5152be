// float32 and float64 GEMM on Hopper's float64 tensor cores, in any alignment.
//
// float32: a product of two float32 numbers is exact in float64, and a float64 tensor core does as many multiply-adds
// per clock as the float32 CUDA cores of its SM. So the kernel is as fast as an SGEMM can be, and its only rounding
// that counts is that of a finished sum to float32.
//
// A block computes a (BM, BN) tile of D over a slice of K. Its warps form GROUPS groups, each of which has the whole
// tile and every GROUPS-th step of 16 k. A group fills its own ring of stages by cp.async, with elements as they are. A
// warp reads fragments from there, converts float32 to float64 and multiplies them by m16n8k16. An SM converts 16
// elements per clock, so a warp's part of the tile is 32x32 or 64x32: it needs 2 or 1.5 conversions for 32
// multiply-adds, of which the SM does 128 per clock.
//
// The copies are 16 bytes wide where the operand consists of such chunks, and one element otherwise. Elements beyond
// the ends of A and B arrive as zeros. A warp leaves out mma whose rows all lie beyond the end of D. Instructions other
// than mma decide the speed where K is short (NOTES.md), so threads keep places and addresses instead of computing them
// again.
//
//   group 0:  copies, mma, copies, mma, ...   adds the sums of the other groups   epilogue, or partial sums
//   group g:  copies, mma, copies, mma, ...   leaves its sums in shared memory
//
// Up to eight slices of K can be the blocks of a cluster. Each block then adds up a part of the rows from the shared
// memory of all of them. More slices leave float64 partial sums in the workspace, which add_slices() adds up. The order
// of the slices is kept, and all orders of additions are fixed by the problem and the device, so the same input gives
// the same bits.
//
// Of x @ x.T only the tiles that touch the upper triangle are computed. Blocks of 32x32 results, of which the parts of
// the warps consist, lie above the diagonal, on it, or below it. Those above it are stored to their mirror image as
// well, and those below it are left out, so that each element of D is stored once, and may be C's.
#pragma once

#include <cstdint>

#include "core/fast_divisor.h"
#include "core/problem.h"
#include "kernels/sm90_dmma/config.h"
#include "ptx/cluster.cuh"
#include "ptx/cluster_f64.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/dependent_launch.cuh"
#include "ptx/ld_shared.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/mma_f64.cuh"
#include "ptx/shared.cuh"
#include "ptx/smem_addr.cuh"
#include "ptx/store.cuh"
#include "tile/epilogue.cuh"
#include "tile/raster.h"
#include "tile/triangle.h"

namespace hgemm::sm90_dmma {

/// The run-time parameters, for elements of type T. Strides count elements.
template <class T>
struct Params {
  const T *a, *b;
  int64_t lda, ldb;
  int64_t a_batch[2], b_batch[2];  // batch strides, outer and inner
  int m, n, k, steps;              // steps: of K
  uint32_t slices;
  bool in_cluster;  // the slices of a tile are the blocks of a cluster
  uint32_t batches;
  FastDivisor batch_inner;  // the extent of the batch's inner dimension
  tile::Raster raster;      // of the tiles
  tile::Triangle triangle;  // in place of `raster`, if is_triangle
  bool is_triangle;         // as in Schedule
  bool wide_a, wide_b;      // has_chunks_a() and has_chunks_b()
  int64_t turn_a, turn_b;   // bytes between a thread's chunks of a tile
  int64_t step_a, step_b;   // bytes between a group's tiles of an MN-major operand
  int pitch;                // of the partial sums
  double* partial;          // (slices, batches, m, pitch), unless the slices are a cluster
  tile::EpilogueParams epilogue;
  double alpha, beta;  // of float64; float32 results have those of `epilogue`
};

/// The tiles of one operand, (EXTENT, BK), on their way into the stages of a group. A thread copies one chunk of a row,
/// in memory order, and the same chunk of every kAtOnce-th row after it. A chunk has 16 bytes if the operand consists
/// of such chunks (has_chunks_a() in config.h), or one element.
template <class T, int EXTENT, bool kKMajor, int THREADS>
class Operand {
  /// The thread's chunks of kElements.
  template <int kElements>
  struct Chunks {
    static constexpr int ROWS = kKMajor ? EXTENT : BK, kPerRow = (kKMajor ? BK : EXTENT) / kElements;
    static constexpr int kAtOnce = THREADS / kPerRow, kTurns = ROWS / kAtOnce;
    static_assert(THREADS % kPerRow == 0 && ROWS % kAtOnce == 0);
    static __device__ __forceinline__ int row(int thread) { return thread / kPerRow; }
    static __device__ __forceinline__ int column(int thread) { return thread % kPerRow * kElements; }
  };
  static constexpr int kSize = sizeof(T), kWhole = 16 / kSize;
  using Wide = Chunks<kWhole>;
  using Narrow = Chunks<1>;

 public:
  /// The bytes from one of a thread's chunks to the next one.
  static int64_t turn_bytes(int64_t ld, bool wide) { return kSize * (wide ? Wide::kAtOnce : Narrow::kAtOnce) * ld; }

  /// The next tile begins at row of A or column of B `x0`, of `extent`, and at k0.
  __device__ __forceinline__ void begin(const T* matrix, int64_t ld, int x0, int k0, int extent, bool wide,
                                        int thread) {
    const int row = wide ? Wide::row(thread) : Narrow::row(thread);
    const int column = wide ? Wide::column(thread) : Narrow::column(thread);
    next_ = reinterpret_cast<const char*>(matrix + ((kKMajor ? x0 : k0) + row) * ld + (kKMajor ? k0 : x0) + column);
    x_left_ = extent - x0 - (kKMajor ? row : column);
    place_ = 4 * Places<EXTENT, kKMajor, T>::in_memory(row, column);
  }

  /// Starts copying the next tile, of whose k only k_left lie in the matrix, to shared memory at `to`. Elements that do
  /// not lie in the matrix arrive as zeros. The tile after it is step_bytes further on.
  __device__ __forceinline__ void fetch(uint32_t to, int k_left, int64_t turn_bytes, int64_t step_bytes, bool wide,
                                        int thread) {
    if (wide) {
      copy<kWhole>(to, k_left, turn_bytes, thread);
    } else {
      copy<1>(to, k_left, turn_bytes, thread);
    }
    next_ += step_bytes;
  }

 private:
  template <int kElements>
  __device__ __forceinline__ void copy(uint32_t to, int k_left, int64_t turn_bytes, int thread) const {
    using C = Chunks<kElements>;
    const char* from = next_;
    const int k_here = k_left - (kKMajor ? C::column(thread) : C::row(thread));  // k from the thread's first chunk on
#pragma unroll
    for (int turn = 0; turn < C::kTurns; ++turn) {
      const uint32_t at = to + TurnPlaces<EXTENT, kKMajor, C::kAtOnce, T>::at(place_, turn);
      const int row = turn * C::kAtOnce;
      const bool inside = kKMajor ? x_left_ > row && k_here > 0 : k_here > row && x_left_ > 0;
      if constexpr (kElements == kWhole) {
        ptx::cp_async_line_16(at, from, inside);
      } else {
        ptx::cp_async<kSize>(at, from, inside);
      }
      from += turn_bytes;
    }
  }

  const char* next_;  // the thread's first chunk
  int x_left_;        // rows of A or columns of B from there to the end
  int place_;         // of the chunk in a stage, in bytes
};

/// The compile-time parameters of the kernel: Config, memory orders of A and B.
template <class Config_, Major kMajorA, Major kMajorB>
struct Traits : Config_ {
  using Config = Config_;
  static constexpr bool kKMajorA = kMajorA == Major::kK, kKMajorB = kMajorB == Major::kK;
  using T = typename Config::T;
  using Params = sm90_dmma::Params<T>;
  using A = Operand<T, Config::BM, kKMajorA, Config::kGroupThreads>;
  using B = Operand<T, Config::BN, kKMajorB, Config::kGroupThreads>;
  static constexpr bool kMayMirror = kKMajorA == kKMajorB;  // as may_mirror() in config.h
};

/// The rows of a warp's part, which begins at (row0, column0) of D, that are computed and stored: those that lie in D
/// and, of x @ x.T, not in blocks below the diagonal. The number may be negative, or larger than WM.
template <class Traits>
__device__ __forceinline__ int rows_wanted(const typename Traits::Params& p, int row0, int column0) {
  if (column0 >= p.n) return 0;
  const int rows = p.m - row0;
  if constexpr (Traits::kMayMirror) {
    if (p.is_triangle) return min(rows, column0 + WN - row0);
  }
  return rows;
}

/// Whether the block of (WN, WN) results at (row0, column0) of D is stored to its mirror image as well.
template <class Traits>
__device__ __forceinline__ bool is_mirrored(const typename Traits::Params& p, int row0, int column0) {
  return Traits::kMayMirror && p.is_triangle && row0 < column0;
}

/// Loads a chunk of a four of elements, in program order with the mma: all of them in float32, the `chunk`-th two in
/// float64. `place`: in units of four bytes.
template <class T>
__device__ __forceinline__ void load(T (&to)[4], int chunk, uint32_t stage, int place) {
  uint32_t v[4];
  ptx::ld_shared_16(v[0], v[1], v[2], v[3], stage + 4 * place);
  if constexpr (sizeof(T) == 4) {
#pragma unroll
    for (int i = 0; i < 4; ++i) to[i] = __uint_as_float(v[i]);
  } else {
#pragma unroll
    for (int i = 0; i < 2; ++i) to[2 * chunk + i] = __hiloint2double(v[2 * i + 1], v[2 * i]);
  }
}

/// The sums of a warp's (WM, WN) part of the tile, and the part of a stage that it reads.
template <class Traits>
class Sums {
  using T = typename Traits::T;
  static constexpr int kChunks = sizeof(T) / 4;  // of a four of elements
  static constexpr int BM = Traits::BM, BN = Traits::BN, MI = Traits::WM / 16, NJ = WN / 8;
  using PlacesA = LanePlaces<BM, Traits::kKMajorA, T>;
  using PlacesB = LanePlaces<BN, Traits::kKMajorB, T>;

 public:
  static constexpr int kCount = MI * NJ * 4;  // sums of a lane

  /// `row` and `column`: where the warp's part begins in the tile. `rows`: rows_wanted().
  __device__ __forceinline__ Sums(int row, int column, int rows) {
    const int g = lane() / 4, t = lane() % 4;
    a_[0] = PlacesA::first_of_a(row, g, t);
    b_[0] = kChunks * BM * BK + PlacesB::first_of_b(column, g, t);
    if constexpr (kChunks == 2) a_[1] = second_chunk(a_[0]), b_[1] = second_chunk(b_[0]);
    needed_ = min(max((rows + 16 * kBand - 1) / (16 * kBand), 0), kBands);
  }

  /// Multiplies the warp's parts of a stage and accumulates. A stage holds A's tile, then B's.
  __device__ __forceinline__ void add(uint32_t stage) {
    if (needed_ == kBands) {
      add_all<true>(stage);
    } else if (needed_ > 0) {
      add_all<false>(stage);
    }
  }

  /// The i-th sum of this lane, in a fixed order.
  __device__ __forceinline__ double& operator[](int i) { return sums_[i / (NJ * 4)][i / 4 % NJ][i % 4]; }

  /// Where this lane's first result is in the warp's part.
  static __device__ __forceinline__ int lane_row() { return row_of<Traits::kKMajorA>(0, 0, lane() / 4); }
  static __device__ __forceinline__ int lane_column() { return column_of(0, lane() % 4 * 2); }

  /// Calls visit(row, column, four) for every four neighbouring results of this lane: the sums, and how many rows and
  /// columns behind the lane's first result they are. The rows and columns are constants for the compiler.
  template <class Visit>
  __device__ __forceinline__ void for_fours(const Visit& visit) const {
#pragma unroll
    for (int i = 0; i < MI; ++i) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          double four[4];
#pragma unroll
          for (int j = 0; j < NJ; ++j) four[j] = sums_[i][j][2 * h + e];
          visit(row_of<Traits::kKMajorA>(i, h, 0), column_of(0, e), four);
        }
      }
    }
  }

 private:
  // With an MN-major A, the four rows that a lane reads at once are in two mma. These mma form a band.
  static constexpr int kBand = Traits::kKMajorA ? 1 : 2, kBands = MI / kBand;
  using Raw = T[2 * kBand][4];

  static __device__ __forceinline__ uint32_t lane() { return ptx::opaque(threadIdx.x) % 32; }

  /// Loads this lane's elements of a band of A.
  __device__ __forceinline__ void load_band(Raw& raw, uint32_t stage, int band) const {
#pragma unroll
    for (int x = 0; x < 2 * kBand; ++x) {  // K-major: x is the row, four k; otherwise the k, four rows
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
        load(raw[x], c, stage, Traits::kKMajorA ? PlacesA::row(a_[c], band, x) : PlacesA::k(a_[c], band, x));
      }
    }
  }

  /// `kAll`: all bands are needed, which leaves the compiler free to interleave them.
  template <bool kAll>
  __device__ __forceinline__ void add_all(uint32_t stage) {
    Raw raw;
    load_band(raw, stage, 0);
    double b[NJ][4];
#pragma unroll
    for (int x = 0; x < 4; ++x) {  // K-major: x is the mma, four k; otherwise the k, one column for each mma
      T v[4];
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
        load(v, c, stage, Traits::kKMajorB ? PlacesB::column(b_[c], x) : PlacesB::k(b_[c], 0, x));
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) (Traits::kKMajorB ? b[x][i] : b[i][x]) = v[i];
    }
#pragma unroll
    for (int band = 0; band < kBands; ++band) {
      if (!kAll && band >= needed_) break;
      double a[kBand][8];
#pragma unroll
      for (int x = 0; x < 2 * kBand; ++x) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          (Traits::kKMajorA ? a[0][2 * i + x % 2] : a[i / 2 % kBand][2 * x + i % 2]) = raw[x][i];
        }
      }
      if (band + 1 < kBands) load_band(raw, stage, band + 1);  // under way during the mma of this band
#pragma unroll
      for (int i = 0; i < kBand; ++i) {
#pragma unroll
        for (int j = 0; j < NJ; ++j) ptx::mma_f64_m16n8k16(sums_[band * kBand + i][j], a[i], b[j]);
      }
    }
  }

  int a_[kChunks], b_[kChunks];  // where the chunks of the lane's first elements are in a stage
  int needed_;                   // bands that have wanted rows
  double sums_[MI][NJ][4] = {};
};

/// Where a matrix of the batch begins, from its batch strides.
template <class T>
__device__ __forceinline__ int64_t batch_offset(const Params<T>& p, uint32_t batch, const int64_t (&strides)[2]) {
  const uint32_t outer = p.batch_inner.quotient(batch), inner = batch - outer * p.batch_inner.divisor();
  return outer * strides[0] + inner * strides[1];
}

/// Where a matrix of the batch begins in D and C.
template <class T>
__device__ __forceinline__ tile::BatchOffset batch_offset(const Params<T>& p, uint32_t batch) {
  return {batch_offset(p, batch, p.epilogue.d_batch), batch_offset(p, batch, p.epilogue.c_batch)};
}

/// Whether finish_rows() is the epilogue.
__device__ __forceinline__ bool is_plain(const tile::EpilogueParams& e) {
  return e.pre_activation == nullptr && e.act == Activation::kNone;
}

/// Applies the epilogue to W neighbouring float64 results, and stores those that lie in D. `v` holds A @ B. For W = 4,
/// `column` is a multiple of four.
template <int W>
__device__ __forceinline__ void finish_f64(const tile::EpilogueParams& e, double alpha, double beta,
                                           tile::BatchOffset offset, int64_t row, int64_t column, double (&v)[W]) {
  if (alpha != 1.0) {
#pragma unroll
    for (int j = 0; j < W; ++j) v[j] *= alpha;
  }
  if (e.c != nullptr) {
    const double* const c = static_cast<const double*>(e.c) + offset.c + row * e.c_row + column * e.c_col;
#pragma unroll
    for (int j = 0; j < W; ++j) {
      if (column + j < e.n) v[j] = fma(beta, c[j * e.c_col], v[j]);
    }
  }
  if (e.bias != nullptr) {
    const double* const bias = static_cast<const double*>(e.bias) + column;
#pragma unroll
    for (int j = 0; j < W; ++j) {
      if (column + j < e.n) v[j] += bias[j];
    }
  }
  double* const to = static_cast<double*>(e.d) + offset.d + row * e.ldd + column;
  if constexpr (W == 4) {
    if (e.wide_d && column + W <= e.n) {
      reinterpret_cast<double2*>(to)[0] = make_double2(v[0], v[1]);
      reinterpret_cast<double2*>(to)[1] = make_double2(v[2], v[3]);
      return;
    }
  }
#pragma unroll
  for (int j = 0; j < W; ++j) {
    if (column + j < e.n) to[j] = v[j];
  }
}

/// Applies the epilogue to W neighbouring columns of kRows rows and stores them. `v` holds A @ B. The first row is
/// `row`, the others follow at a distance of `apart`, and those from `end` on are left out. For W = 4, D's address at
/// (row, column) is a multiple of 16 bytes. All of C is loaded before anything is stored, so that the loads are in
/// flight together. The rounding is that of tile::finish().
template <int kRows, int W>
__device__ __forceinline__ void finish_rows(const tile::EpilogueParams& e, tile::BatchOffset offset, int row, int apart,
                                            int end, int column, float (&v)[kRows][W]) {
  const auto for_all = [&](const auto& visit) {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
#pragma unroll
      for (int j = 0; j < W; ++j) visit(i, j);
    }
  };
  if (e.alpha != 1.0f) for_all([&](int i, int j) { v[i][j] *= e.alpha; });
  // The explicit fmaf rounds alpha * sum before it adds.
  if (e.c != nullptr) {
    const float* const c = static_cast<const float*>(e.c) + offset.c + row * e.c_row + column * e.c_col;
    float addends[kRows][W] = {};
    for_all([&](int i, int j) {
      if (row + i * apart < end) addends[i][j] = c[i * apart * e.c_row + j * e.c_col];
    });
    for_all([&](int i, int j) { v[i][j] = fmaf(e.beta, addends[i][j], v[i][j]); });
  }
  if (e.bias != nullptr) {
    const float* const bias = static_cast<const float*>(e.bias) + column;
    float addends[W];
#pragma unroll
    for (int j = 0; j < W; ++j) addends[j] = bias[j];
    for_all([&](int i, int j) { v[i][j] = fmaf(1.0f, addends[j], v[i][j]); });
  }
  float* to = static_cast<float*>(e.d) + offset.d + row * e.ldd + column;
#pragma unroll
  for (int i = 0; i < kRows; ++i, to += apart * e.ldd) {
    if (row + i * apart >= end) continue;
    if constexpr (W == 4) {
      ptx::store_16(to, v[i]);  // the compiler would split an assignment of a float4
    } else {
      static_assert(W == 1);
      *to = v[i][0];
    }
  }
}

/// Applies the epilogue to a warp's results in shared memory, `scratch`, (WM, WN), and stores them, W columns of a row
/// at a time by each lane. (row0, column0): where the warp's part begins in D; `rows` and `columns` of it lie in D.
template <int WM, int W>
__device__ __forceinline__ void emit_rows(const tile::EpilogueParams& e, tile::BatchOffset offset, const float* scratch,
                                          int row0, int column0, int rows, int columns) {
  constexpr int kLanes = WN / W;         // of a row
  constexpr int kAtOnce = 32 / kLanes;   // rows that a warp stores at once
  constexpr int kRows = W == 4 ? 4 : 8;  // of a lane
  static_assert(WM % (kRows * kAtOnce) == 0);
  const int lane = threadIdx.x % 32, column = lane % kLanes * W;
  if (column >= columns) return;
#pragma unroll 1
  for (int row = lane / kLanes; row < rows; row += kRows * kAtOnce) {
    float v[kRows][W];
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const float* const from = scratch + result_at(row + i * kAtOnce, column);
      if constexpr (W == 4) {
        const float4 four = *reinterpret_cast<const float4*>(from);
        v[i][0] = four.x, v[i][1] = four.y, v[i][2] = four.z, v[i][3] = four.w;
      } else {
        v[i][0] = *from;
      }
    }
    finish_rows(e, offset, row0 + row, kAtOnce, row0 + rows, column0 + column, v);
  }
}

/// Applies the epilogue to `rows` rows and `columns` columns of a warp's results in shared memory, `scratch`, (WM, WN),
/// and stores them, from (row0, column0) of D on.
template <int WM>
__device__ __forceinline__ void emit_scratch(const tile::EpilogueParams& e, tile::BatchOffset offset,
                                             const float* scratch, int row0, int column0, int rows, int columns) {
  if (is_plain(e)) {
    if (e.wide_d && columns % 4 == 0) {
      emit_rows<WM, 4>(e, offset, scratch, row0, column0, rows, columns);
    } else {
      emit_rows<WM, 1>(e, offset, scratch, row0, column0, rows, columns);
    }
    return;
  }
  const int lane = threadIdx.x % 32;
  if (lane >= columns) return;
#pragma unroll 1  // finish() is long
  for (int row = 0; row < rows; ++row) {
    float v[8] = {scratch[result_at(row, lane)]};
    tile::finish<float>(e, offset, row0 + row, column0 + lane, {0, 1}, true, v);
  }
}

/// Stores a warp's float64 results. The four lanes that have neighbouring fours of a row store 128 bytes of it. (row0,
/// column0): where the warp's part begins in D.
template <class Traits>
__device__ __forceinline__ void emit_f64(const Params<double>& p, tile::BatchOffset offset, const Sums<Traits>& sums,
                                         int row0, int column0) {
  const int lane_row = sums.lane_row(), first_column = column0 + sums.lane_column();
  const int rows = rows_wanted<Traits>(p, row0, column0) - lane_row;
  sums.for_fours([&](int row, int column, const double (&four)[4]) {
    if (row >= rows || first_column + column >= p.n) return;
    const int at_row = row0 + lane_row + row, at_column = first_column + column;
    double v[4] = {four[0], four[1], four[2], four[3]};
    finish_f64(p.epilogue, p.alpha, p.beta, offset, at_row, at_column, v);
    if (!is_mirrored<Traits>(p, row0 + row / WN * WN, column0)) return;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      double mirrored[1] = {four[j]};
      if (at_column + j < p.n) finish_f64(p.epilogue, p.alpha, p.beta, offset, at_column + j, at_row, mirrored);
    }
  });
}

/// Stores a warp's results: rounds the sums to float32, and passes them through shared memory, `scratch`, (WM, WN), so
/// that the warp stores whole rows. (row0, column0): where the warp's part begins in D.
template <class Traits>
__device__ __forceinline__ void emit(const Params<float>& p, tile::BatchOffset offset, const Sums<Traits>& sums,
                                     float* scratch, int row0, int column0) {
  constexpr int WM = Traits::WM;
  const int lane_row = sums.lane_row(), lane_column = sums.lane_column();
  const int rows = min(rows_wanted<Traits>(p, row0, column0), WM), columns = min(p.n - column0, WN);
  sums.for_fours([&](int row, int column, const double (&four)[4]) {
    *reinterpret_cast<float4*>(scratch + result_at(lane_row + row, lane_column + column)) =
        make_float4(static_cast<float>(four[0]), static_cast<float>(four[1]), static_cast<float>(four[2]),
                    static_cast<float>(four[3]));
  });
  __syncwarp();
  emit_scratch<WM>(p.epilogue, offset, scratch, row0, column0, rows, columns);
  if constexpr (Traits::kMayMirror) {
    if (!is_mirrored<Traits>(p, row0, column0)) return;
    // The part's transposed blocks of (WN, WN) results, one behind the other. All of their columns lie in D.
    __syncwarp();
    sums.for_fours([&](int row, int column, const double (&four)[4]) {
      float* const block = scratch + row / WN * (WN * WN);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        block[result_at(lane_column + column + j, lane_row + row % WN)] = static_cast<float>(four[j]);
      }
    });
    __syncwarp();
#pragma unroll 1
    for (int row = 0; row < WM && is_mirrored<Traits>(p, row0 + row, column0); row += WN) {
      emit_scratch<WN>(p.epilogue, offset, scratch + row * WN, column0, row0 + row, columns, WN);
    }
  }
}

/// What a warp computes: its block's tile, matrix of the batch and slice of K, its own part of the tile, and its group.
template <class Traits>
struct Place {
  uint32_t batch, slice;
  int m0, n0;          // where the tile begins in D
  int warp_m, warp_n;  // where the warp's part begins in the tile
  int group, thread;   // the thread's number in the group

  /// `block`: the number of the tile. blockIdx.y is the slice.
  __device__ __forceinline__ Place(const tile::RasterUnit& tile, uint32_t block, uint32_t thread_) {
    batch = tile.batch;
    slice = blockIdx.y;
    m0 = static_cast<int>(tile.row) * Traits::BM;
    n0 = static_cast<int>(tile.col) * Traits::BN;
    group = Traits::GROUPS == 1 ? 0 : thread_ / Traits::kGroupThreads;
    thread = Traits::GROUPS == 1 ? thread_ : thread_ % Traits::kGroupThreads;
    // Which part of the tile a warp computes rotates from block to block. Parts at the edges of D have less work, and a
    // warp stays on one of the SM's four tensor cores.
    const int part = (thread / 32 + block + batch) % Traits::kGroupWarps;  // the same in all slices
    warp_m = part % Traits::kWarpsM * Traits::WM;
    warp_n = part / Traits::kWarpsM * WN;
  }
};

/// Stores this block's share of the rows of a warp's part, if the slices of K are a cluster. All blocks have the sums
/// of their slices at `results` in shared memory, (WM, WN) doubles. A warp of the same number has the same part in
/// each.
template <class Traits>
__device__ __forceinline__ void emit_share(const typename Traits::Params& p, const Place<Traits>& at,
                                           uint32_t results) {
  constexpr int WM = Traits::WM;
  const tile::EpilogueParams& e = p.epilogue;
  const int lane = threadIdx.x % 32, slices = static_cast<int>(p.slices), slice = static_cast<int>(at.slice);
  const int row0 = at.m0 + at.warp_m, column0 = at.n0 + at.warp_n, column = column0 + lane;
  const int first = WM / slices * slice, last = min(first + WM / slices, rows_wanted<Traits>(p, row0, column0));
  if (column >= p.n) return;
  const tile::BatchOffset offset = batch_offset(p, at.batch);
  // Adds up rows from `row` on, of two slices at a time, so that their loads are in flight together.
  const auto add_rows = [&](int row, auto& sums) {
    constexpr int kRows = sizeof(sums) / sizeof(double);
#pragma unroll 1
    for (int other = 0; other < slices; other += 2) {
      double v[2][kRows];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const uint32_t from = ptx::cluster_map(results, other + i);
#pragma unroll
        for (int j = 0; j < kRows; ++j) v[i][j] = ptx::cluster_load_8(from + 8 * result_at(row + j, lane));
      }
#pragma unroll
      for (int i = 0; i < 2; ++i) {
#pragma unroll
        for (int j = 0; j < kRows; ++j) sums[j] += v[i][j];
      }
    }
  };
  if constexpr (sizeof(typename Traits::T) == 8) {
#pragma unroll 1
    for (int row = first; row < last; row += 4) {
      double sums[4] = {};
      add_rows(row, sums);
      const bool mirrors = is_mirrored<Traits>(p, row0 + row / WN * WN, column0);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        if (row + j >= last) continue;
        double v[1] = {sums[j]}, mirrored[1] = {sums[j]};
        finish_f64(e, p.alpha, p.beta, offset, row0 + row + j, column, v);
        if (mirrors) finish_f64(e, p.alpha, p.beta, offset, column, row0 + row + j, mirrored);
      }
    }
    return;
  }
  if (is_plain(e)) {
#pragma unroll 1
    for (int row = first; row < last; row += 4) {
      double sums[4] = {};
      add_rows(row, sums);
      float v[4][1];
#pragma unroll
      for (int j = 0; j < 4; ++j) v[j][0] = static_cast<float>(sums[j]);
      finish_rows(e, offset, row0 + row, 1, row0 + last, column, v);
      if (!is_mirrored<Traits>(p, row0 + row / WN * WN, column0)) continue;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        float mirrored[1][1] = {{static_cast<float>(sums[j])}};
        if (row + j < last) finish_rows(e, offset, column, 1, column + 1, row0 + row + j, mirrored);
      }
    }
    return;
  }
#pragma unroll 1
  for (int row = first; row < last; ++row) {
    double sums[1] = {};
    add_rows(row, sums);
    float v[8] = {static_cast<float>(sums[0])}, mirrored[8] = {v[0]};
    tile::finish<float>(e, offset, row0 + row, column, {0, 1}, true, v);
    if (!is_mirrored<Traits>(p, row0 + row / WN * WN, column0)) continue;
    tile::finish<float>(e, offset, column, row0 + row, {0, 1}, true, mirrored);
  }
}

template <class Traits>
__global__ void __launch_bounds__(Traits::kThreads, Traits::BLOCKS)
    kernel(const __grid_constant__ typename Traits::Params p) {
  constexpr int BM = Traits::BM, GROUPS = Traits::GROUPS, STAGES = Traits::STAGES;
  constexpr int kGroupThreads = Traits::kGroupThreads;
  constexpr int kSize = sizeof(typename Traits::T);
  extern __shared__ __align__(1024) float smem[];  // (GROUPS, STAGES, kStage); Config says what follows

  // A tile of a triangle takes long to find, so its place is kept until the end.
  tile::RasterUnit* const tile_of_triangle = reinterpret_cast<tile::RasterUnit*>(smem + Traits::kTileAt / 4);
  tile::RasterUnit tile;
  if (Traits::kMayMirror && p.is_triangle) {
    tile = tile::unit_at(p.triangle, blockIdx.x);
    if (threadIdx.x == 0) *tile_of_triangle = tile;
  } else {
    tile = tile::unit_at(p.raster, blockIdx.x);
  }
  const Place<Traits> at(tile, blockIdx.x, threadIdx.x);
  Sums<Traits> sums(at.warp_m, at.warp_n, rows_wanted<Traits>(p, at.m0 + at.warp_m, at.n0 + at.warp_n));
  const int64_t steps = p.steps;
  const int first = static_cast<int>(steps * at.slice / p.slices) + at.group;  // of the group's steps
  // The k from its first step to the end of the slice. A slice ends behind a whole step, or at the end of K.
  const int slice_k = min(static_cast<int>(steps * (at.slice + 1) / p.slices) * BK, p.k) - first * BK;
  const uint32_t ring = ptx::opaque(ptx::smem_addr(smem)) + kSize * at.group * Traits::kRing;

  ptx::grid_dependency_wait();
  typename Traits::A a;
  typename Traits::B b;
  a.begin(p.a + batch_offset(p, at.batch, p.a_batch), p.lda, at.m0, first * BK, p.m, p.wide_a, at.thread);
  b.begin(p.b + batch_offset(p, at.batch, p.b_batch), p.ldb, at.n0, first * BK, p.n, p.wide_b, at.thread);
  int k_left = slice_k;  // to be fetched
  const auto fetch = [&](uint32_t to) {
    if (k_left > 0) {
      const int thread = ptx::opaque(threadIdx.x) % kGroupThreads;
      a.fetch(to, k_left, p.turn_a, Traits::kKMajorA ? kSize * GROUPS * BK : p.step_a, p.wide_a, thread);
      b.fetch(to + kSize * BM * BK, k_left, p.turn_b, Traits::kKMajorB ? kSize * GROUPS * BK : p.step_b, p.wide_b,
              thread);
    }
    k_left -= GROUPS * BK;
    ptx::cp_async_commit();
  };
  constexpr uint32_t kStageBytes = kSize * Traits::kStage, kLastStage = (STAGES - 1) * kStageBytes;
#pragma unroll 1
  for (uint32_t to = 0; to < kLastStage; to += kStageBytes) fetch(ring + to);
  uint32_t stage = 0;  // in bytes
#pragma unroll 1
  while (k_left + (STAGES - 1) * GROUPS * BK > 0) {
    ptx::cp_async_wait<STAGES - 2>();
    if constexpr (GROUPS == 1) {
      __syncthreads();
    } else {
      ptx::barrier_sync(1 + at.group, kGroupThreads);
    }
    // The stage that all warps of the group have read before the barrier.
    fetch(ring + (stage == 0 ? kLastStage : stage - kStageBytes));
    sums.add(ring + stage);
    stage = stage == kLastStage ? 0 : stage + kStageBytes;
  }
  ptx::grid_launch_dependents();
  __syncthreads();  // all stages have been read, and no copy is in flight

  // The place again, to save registers until here.
  const uint32_t block = ptx::opaque(blockIdx.x);
  tile = Traits::kMayMirror && p.is_triangle ? *tile_of_triangle : tile::unit_at(p.raster, block);
  const Place<Traits> to(tile, block, ptx::opaque(threadIdx.x));
  if constexpr (GROUPS > 1) {
    double* const others = reinterpret_cast<double*>(smem) + to.thread;  // (GROUPS - 1, kCount, kGroupThreads)
    constexpr int kCount = Sums<Traits>::kCount;
    if (to.group > 0) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) others[((to.group - 1) * kCount + i) * kGroupThreads] = sums[i];
    }
    __syncthreads();
    if (to.group == 0) {
#pragma unroll
      for (int other = 0; other < GROUPS - 1; ++other) {
#pragma unroll
        for (int i = 0; i < kCount; ++i) sums[i] += others[(other * kCount + i) * kGroupThreads];
      }
    } else if (!p.in_cluster) {
      return;
    }
  }

  const int row0 = to.m0 + to.warp_m, column0 = to.n0 + to.warp_n;
  if (p.in_cluster) {
    if constexpr (GROUPS > 1) __syncthreads();  // the sums of the other groups have been read
    double* const results = reinterpret_cast<double*>(smem) + to.thread / 32 * (Traits::WM * WN);  // (WM, WN)
    if (to.group == 0) {
      const int lane_row = sums.lane_row(), lane_column = sums.lane_column();
      sums.for_fours([&](int row, int column, const double (&four)[4]) {
        double2* const four_at = reinterpret_cast<double2*>(results + result_at(lane_row + row, lane_column + column));
        four_at[0] = make_double2(four[0], four[1]);
        four_at[1] = make_double2(four[2], four[3]);
      });
    }
    ptx::cluster_sync();
    if (to.group == 0) emit_share<Traits>(p, to, ptx::smem_addr(results));
    __syncwarp();
    ptx::cluster_sync();  // before a block ends, the others have read its results
    return;
  }
  if (p.slices > 1) {
    const int lane_row = sums.lane_row(), column1 = column0 + sums.lane_column();
    const int rows = rows_wanted<Traits>(p, row0, column0) - lane_row;  // from the lane's first one on
    double* const partial = p.partial + (static_cast<int64_t>(to.slice) * p.batches + to.batch) * p.m * p.pitch;
    sums.for_fours([&](int row, int column, const double (&four)[4]) {
      if (row >= rows || column1 + column >= p.pitch) return;
      double* const four_at = partial + static_cast<int64_t>(row0 + lane_row + row) * p.pitch + column1 + column;
      reinterpret_cast<double2*>(four_at)[0] = make_double2(four[0], four[1]);
      reinterpret_cast<double2*>(four_at)[1] = make_double2(four[2], four[3]);
    });
    return;
  }
  if constexpr (kSize == 8) {
    emit_f64(p, batch_offset(p, to.batch), sums, row0, column0);
  } else {
    float* const scratch = smem + Traits::kSumsBytes / 4 + to.thread / 32 * (Traits::WM * WN);
    emit(p, batch_offset(p, to.batch), sums, scratch, row0, column0);
  }
}

constexpr int kAddThreads = 256, kAddWarps = kAddThreads / 32;

/// The run-time parameters of add_slices().
struct AddParams {
  const double* partial;  // (slices, count): sums in rows of `pitch`, of which the first n count
  int slices, ways;
  uint32_t pitch, count;
  bool is_triangle;  // the partial sums of blocks below the diagonal are undefined
  tile::EpilogueParams epilogue;
  double alpha, beta;  // as in Params
};

/// Adds up the partial sums of the slices and applies the epilogue. A block has kAddWarps / ways runs of 32 sums that
/// are neighbours in the workspace. Each of the `ways` warps of a run, a divisor of kAddWarps, adds every ways-th
/// slice. Then their sums are added in order.
template <class T>
__global__ void __launch_bounds__(kAddThreads) add_slices(const __grid_constant__ AddParams p) {
  __shared__ double sums[kAddWarps][32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, way = warp % p.ways;
  const uint32_t run = blockIdx.x * (kAddWarps / p.ways) + warp / p.ways, at = run * 32 + lane;
  const uint32_t row_id = at / p.pitch, column = at - row_id * p.pitch;
  const uint32_t m = static_cast<uint32_t>(p.epilogue.m), batch = row_id / m, row = row_id - batch * m;
  const bool is_wanted = at < p.count && column < p.epilogue.n && !(p.is_triangle && row / WN > column / WN);
  ptx::grid_dependency_wait();
  ptx::grid_launch_dependents();
  double sum = 0.0;
  if (is_wanted) {
    const double* const from = p.partial + at;
#pragma unroll 8
    for (int s = way; s < p.slices; s += p.ways) sum += from[static_cast<int64_t>(s) * p.count];
  }
  if (p.ways > 1) {
    sums[warp][lane] = sum;
    __syncthreads();
    if (way > 0) return;
    for (int i = 1; i < p.ways; ++i) sum += sums[warp + i][lane];
  }
  if (!is_wanted) return;
  const tile::BatchOffset offset = tile::batch_offset(p.epilogue, batch);
  const bool is_mirrored = p.is_triangle && row / WN < column / WN;
#pragma unroll 1  // finish() is long
  for (int i = 0; i <= is_mirrored; ++i) {
    const int at_row = i == 0 ? row : column, at_column = i == 0 ? column : row;
    if constexpr (sizeof(T) == 8) {
      double v[1] = {sum};
      finish_f64(p.epilogue, p.alpha, p.beta, offset, at_row, at_column, v);
    } else {
      float v[8] = {static_cast<float>(sum)};
      tile::finish<float>(p.epilogue, offset, at_row, at_column, {0, 1}, true, v);
    }
  }
}

}  // namespace hgemm::sm90_dmma
