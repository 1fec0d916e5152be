// float32 GEMM on Hopper's float64 tensor cores, in any alignment.
//
// A product of two float32 numbers is exact in float64, and a float64 tensor core does as many multiply-adds per clock
// as the float32 CUDA cores of its SM. So the kernel is as fast as an SGEMM can be, and its only rounding that counts
// is that of a finished sum to float32.
//
// A block computes a (BM, BN) tile of D over a slice of K. Its warps form GROUPS groups, each of which has the whole
// tile and every GROUPS-th step of 16 k. A group fills its own ring of stages by cp.async, with float32 elements. A
// warp reads fragments from there, converts them to float64 and multiplies them by m16n8k16. An SM converts 16 elements
// per clock, so a warp's part of the tile is 32x32 or 64x32: it needs 2 or 1.5 conversions for 32 multiply-adds, of
// which the SM does 128 per clock.
//
// The copies are 16 bytes wide where the operand's alignment allows it, and 4 bytes otherwise. Elements beyond the ends
// of A and B arrive as zeros. A warp leaves out mma whose rows all lie beyond the end of D.
//
//   group 0:  copies, mma, copies, mma, ...   adds the sums of the other groups   epilogue, or partial sums
//   group g:  copies, mma, copies, mma, ...   leaves its sums in shared memory
//
// Up to eight slices of K can be the blocks of a cluster. Each block then adds up a part of the rows from the shared
// memory of all of them. More slices leave float64 partial sums in the workspace, which add_slices() adds up. The order
// of the slices is kept, and all orders of additions are fixed by the problem and the device, so the same input gives
// the same bits.
#pragma once

#include <cstdint>

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
#include "tile/epilogue.cuh"
#include "tile/raster.cuh"

namespace hgemm::sm90_dmma {

/// The compile-time parameters of the kernel: Config, memory orders of A and B.
template <class Config_, Major kMajorA, Major kMajorB>
struct Traits : Config_ {
  using Config = Config_;
  static constexpr bool kKMajorA = kMajorA == Major::kK, kKMajorB = kMajorB == Major::kK;
};

/// The run-time parameters. Strides count elements.
struct Params {
  const float *a, *b;
  int64_t lda, ldb;
  int64_t a_batch[2], b_batch[2];  // batch strides, outer and inner
  int m, n, k;
  uint32_t tiles_m, tiles_n, slices;
  bool in_cluster;                // the slices of a tile are the blocks of a cluster
  uint32_t batches, batch_inner;  // matrices of the batch, and the extent of its inner dimension
  bool wide_a, wide_b;            // the operand consists of aligned 16-byte chunks
  int pitch;                      // of the partial sums
  double* partial;                // (slices, batches, m, pitch), unless the slices are a cluster
  tile::EpilogueParams epilogue;
};

/// Copies the (EXTENT, BK) tiles of one operand to the stages of a group, in copies of kFloats floats.
template <int EXTENT, bool kKMajor, int kFloats, int THREADS>
class Copy {
  static constexpr int ROWS = kKMajor ? EXTENT : BK, WIDTH = kKMajor ? BK : EXTENT;  // in memory order
  static constexpr int kPerRow = WIDTH / kFloats;                                    // copies per row
  static constexpr int kAtOnce = THREADS / kPerRow > 0 ? THREADS / kPerRow : 1;      // rows per iteration
  static constexpr int kRowParts = kPerRow > THREADS ? kPerRow / THREADS : 1;        // iterations per row
  static constexpr int kTurns = ROWS > kAtOnce ? ROWS / kAtOnce : 1;
  static_assert(kRowParts == 1 || kAtOnce == 1);
  static __device__ __forceinline__ uint32_t place(int row, int column) {
    return 4 * (kKMajor ? Places<EXTENT, true>::at(row, column) : Places<EXTENT, false>::at(column, row));
  }

 public:
  /// Starts copying the tile at `from` to shared memory at `to`. Only rows_left of its rows and width_left of its
  /// columns, in memory order, lie in the matrix; elsewhere zeros are written. `thread`: of the group.
  static __device__ __forceinline__ void run(uint32_t to, const float* from, int64_t ld, int rows_left, int width_left,
                                             int thread) {
    int row = thread / kPerRow;
    const int first = thread % kPerRow * kFloats;
    if (ROWS < kAtOnce && row >= ROWS) return;
    from += row * ld + first;
    constexpr int kUnrolled = kFloats == 4 ? kTurns : 4;
#pragma unroll kUnrolled
    for (int i = 0; i < kTurns; ++i) {
#pragma unroll
      for (int part = 0; part < kRowParts; ++part) {
        const int column = first + part * THREADS * kFloats;
        const int inside = row < rows_left ? min(max(width_left - column, 0), kFloats) : 0;
        if constexpr (kFloats == 4) {
          ptx::cp_async_part_16(to + place(row, column), from + part * THREADS * kFloats, 4 * inside);
        } else {
          ptx::cp_async_part_4(to + place(row, column), reinterpret_cast<uint64_t>(from + part * THREADS), 4 * inside);
        }
      }
      row += kAtOnce;
      from += kAtOnce * ld;
    }
  }
};

/// The tiles of one operand on their way into the stages of a group: where the next one begins, and how far it reaches.
template <int EXTENT, bool kKMajor, int THREADS>
class Operand {
 public:
  /// `x0`: the tile's first row of A or column of B, of `extent`. The first step begins at k0; each step is `apart` k
  /// from the one before it.
  __device__ __forceinline__ Operand(const float* matrix, int64_t ld, int x0, int extent, int k0, int apart, bool wide)
      : next_(matrix + (kKMajor ? x0 * ld + k0 : k0 * ld + x0)),
        ld_(ld),
        step_(kKMajor ? apart : apart * ld),
        extent_left_(extent - x0),
        wide_(wide) {}

  /// Starts copying the next tile, of whose k only k_left lie in the matrix, to shared memory at `to`.
  __device__ __forceinline__ void fetch(uint32_t to, int k_left, int thread) {
    const int rows_left = kKMajor ? extent_left_ : k_left, width_left = kKMajor ? k_left : extent_left_;
    if (wide_) {
      Copy<EXTENT, kKMajor, 4, THREADS>::run(to, next_, ld_, rows_left, width_left, thread);
    } else {
      Copy<EXTENT, kKMajor, 1, THREADS>::run(to, next_, ld_, rows_left, width_left, thread);
    }
    next_ += step_;
  }

 private:
  const float* next_;
  int64_t ld_, step_;
  int extent_left_;
  bool wide_;
};

/// Loads four floats of a stage, in program order with the mma. `place`: of the first, in floats.
__device__ __forceinline__ void load(float (&to)[4], uint32_t stage, int place) {
  uint32_t v[4];
  ptx::ld_shared_16(v[0], v[1], v[2], v[3], stage + 4 * place);
#pragma unroll
  for (int i = 0; i < 4; ++i) to[i] = __uint_as_float(v[i]);
}

/// The sums of a warp's (WM, WN) part of the tile, and the part of a stage that it reads.
template <class Traits>
class Sums {
  static constexpr int BM = Traits::BM, BN = Traits::BN, MI = Traits::WM / 16, NJ = WN / 8;
  using PlacesA = Places<BM, Traits::kKMajorA>;
  using PlacesB = Places<BN, Traits::kKMajorB>;

 public:
  static constexpr int kCount = MI * NJ * 4;  // sums of a lane

  /// `row` and `column`: where the warp's part begins in the tile. `rows_left`: rows of D from there on; none if the
  /// part has no columns in D.
  __device__ __forceinline__ Sums(int row, int column, int rows_left) : row_(row), column_(column) {
    needed_ = min(max((rows_left + 16 * kBand - 1) / (16 * kBand), 0), kBands);
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

  /// Calls visit(row, column, four) for every four neighbouring results of this lane: row and column in the warp's
  /// part, and the sums.
  template <class Visit>
  __device__ __forceinline__ void for_fours(const Visit& visit) const {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int i = 0; i < MI; ++i) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          double four[4];
#pragma unroll
          for (int j = 0; j < NJ; ++j) four[j] = sums_[i][j][2 * h + e];
          visit(row_of<Traits::kKMajorA>(i, h, g), column_of(0, 2 * t + e), four);
        }
      }
    }
  }

 private:
  // With an MN-major A, the four rows that a lane reads at once are in two mma. These mma form a band.
  static constexpr int kBand = Traits::kKMajorA ? 1 : 2, kBands = MI / kBand;
  using Raw = float[2 * kBand][4];

  /// Loads this lane's elements of a band of A.
  __device__ __forceinline__ void load_band(Raw& raw, uint32_t stage, int band) const {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int x = 0; x < 2 * kBand; ++x) {  // K-major: x is the row, four k; otherwise the k, four rows
      load(raw[x], stage,
           Traits::kKMajorA ? PlacesA::at(row_ + row_of<true>(band, x, g), k_of(t, 0))
                            : PlacesA::at(row_ + row_of<false>(2 * band, 0, g), k_of(t, x)));
    }
  }

  /// `kAll`: all bands are needed, which leaves the compiler free to interleave them.
  template <bool kAll>
  __device__ __forceinline__ void add_all(uint32_t stage) {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    Raw raw;
    load_band(raw, stage, 0);
    double b[NJ][4];
#pragma unroll
    for (int x = 0; x < 4; ++x) {  // K-major: x is the mma, four k; otherwise the k, one column for each mma
      float v[4];
      load(v, stage + 4 * BM * BK,
           Traits::kKMajorB ? PlacesB::at(column_ + column_of(x, g), k_of(t, 0))
                            : PlacesB::at(column_ + column_of(0, g), k_of(t, x)));
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

  int row_, column_, needed_;  // needed_: bands that have rows of D
  double sums_[MI][NJ][4] = {};
};

/// Whether the epilogue only multiplies by alpha and adds a bias.
__device__ __forceinline__ bool is_plain(const tile::EpilogueParams& e) {
  return e.c == nullptr && e.pre_activation == nullptr && e.act == Activation::kNone;
}

/// Stores a warp's results: rounds the sums to float32, and passes them through shared memory, `scratch`, (WM, WN), so
/// that the warp stores whole rows. (row0, column0): where the warp's part begins in D.
template <class Traits>
__device__ __forceinline__ void emit(const tile::EpilogueParams& e, tile::BatchOffset offset, const Sums<Traits>& sums,
                                     float* scratch, int row0, int column0) {
  constexpr int WM = Traits::WM;
  const int lane = threadIdx.x % 32;
  sums.for_fours([&](int row, int column, const double (&four)[4]) {
    *reinterpret_cast<float4*>(scratch + result_at(row, column)) =
        make_float4(static_cast<float>(four[0]), static_cast<float>(four[1]), static_cast<float>(four[2]),
                    static_cast<float>(four[3]));
  });
  __syncwarp();
  const int rows = static_cast<int>(min(e.m - row0, static_cast<int64_t>(WM)));
  const int columns = static_cast<int>(min(e.n - column0, static_cast<int64_t>(WN)));
  const float* const bias = e.bias == nullptr ? nullptr : static_cast<const float*>(e.bias) + column0;
  // The explicit fmaf rounds alpha * sum before it adds the bias, as tile::finish() does.
  if (is_plain(e) && e.wide_d && columns % 4 == 0 && (bias == nullptr || e.wide_bias)) {  // four columns at a time
    const int column = lane % 8 * 4;
    if (column >= columns) return;
    float4 addend = make_float4(-0.0f, -0.0f, -0.0f, -0.0f);  // adding it changes nothing, a zero's sign included
    if (bias != nullptr) addend = *reinterpret_cast<const float4*>(bias + column);
    float* to = static_cast<float*>(e.d) + offset.d + (row0 + lane / 8) * e.ldd + column0 + column;
#pragma unroll 4
    for (int row = lane / 8; row < rows; row += 4, to += 4 * e.ldd) {
      const float4 v = *reinterpret_cast<const float4*>(scratch + result_at(row, column));
      *reinterpret_cast<float4*>(to) =
          make_float4(fmaf(1.0f, addend.x, v.x * e.alpha), fmaf(1.0f, addend.y, v.y * e.alpha),
                      fmaf(1.0f, addend.z, v.z * e.alpha), fmaf(1.0f, addend.w, v.w * e.alpha));
    }
    return;
  }
  if (lane >= columns) return;
  if (is_plain(e)) {
    const float addend = bias == nullptr ? -0.0f : bias[lane];
    float* to = static_cast<float*>(e.d) + offset.d + row0 * e.ldd + column0 + lane;
#pragma unroll 4
    for (int row = 0; row < rows; ++row, to += e.ldd) *to = fmaf(1.0f, addend, scratch[result_at(row, lane)] * e.alpha);
    return;
  }
#pragma unroll 1  // finish() is long
  for (int row = 0; row < rows; ++row) {
    float v[8] = {scratch[result_at(row, lane)]};
    tile::finish<float>(e, offset, row0 + row, column0 + lane, {0, 1}, true, v);
  }
}

/// What a warp computes: its block's tile, matrix of the batch and slice of K, its own part of the tile, and its group.
template <class Traits>
struct Place {
  uint32_t batch, slice;
  int m0, n0;          // where the tile begins in D
  int warp_m, warp_n;  // where the warp's part begins in the tile
  int group, thread;   // the thread's number in the group

  /// `block`: blockIdx.x. blockIdx.y is the slice.
  __device__ __forceinline__ Place(const Params& p, uint32_t block, uint32_t thread_) {
    const uint32_t tiles = p.tiles_m * p.tiles_n;
    batch = block / tiles;
    slice = blockIdx.y;
    const tile::TileCoord tile = tile::grouped_raster(block - batch * tiles, p.tiles_m, p.tiles_n);
    m0 = tile.m * Traits::BM;
    n0 = tile.n * Traits::BN;
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
__device__ __forceinline__ void emit_share(const Params& p, const Place<Traits>& at, uint32_t results) {
  constexpr int WM = Traits::WM;
  const tile::EpilogueParams& e = p.epilogue;
  const int lane = threadIdx.x % 32, slices = static_cast<int>(p.slices), slice = static_cast<int>(at.slice);
  const int row0 = at.m0 + at.warp_m, column = at.n0 + at.warp_n + lane;
  const int first = WM / slices * slice, last = min(first + WM / slices, p.m - row0);
  if (column >= p.n) return;
  const tile::BatchOffset offset = tile::batch_offset(e, at.batch);
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
  if (is_plain(e)) {
    const float addend = e.bias == nullptr ? -0.0f : static_cast<const float*>(e.bias)[column];
    float* const to = static_cast<float*>(e.d) + offset.d + row0 * e.ldd + column;
#pragma unroll 1
    for (int row = first; row < last; row += 4) {
      double sums[4] = {};
      add_rows(row, sums);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        if (row + j < last) to[(row + j) * e.ldd] = fmaf(1.0f, addend, static_cast<float>(sums[j]) * e.alpha);
      }
    }
    return;
  }
#pragma unroll 1
  for (int row = first; row < last; ++row) {
    double sums[1] = {};
    add_rows(row, sums);
    float v[8] = {static_cast<float>(sums[0])};
    tile::finish<float>(e, offset, row0 + row, column, {0, 1}, true, v);
  }
}

template <class Traits>
__global__ void __launch_bounds__(Traits::kThreads, Traits::BLOCKS) kernel(const __grid_constant__ Params p) {
  constexpr int BM = Traits::BM, BN = Traits::BN, GROUPS = Traits::GROUPS, STAGES = Traits::STAGES;
  constexpr int kGroupThreads = Traits::kGroupThreads;
  extern __shared__ __align__(1024) float smem[];  // (GROUPS, STAGES, kStage); Config says what follows

  const Place<Traits> at(p, blockIdx.x, threadIdx.x);
  Sums<Traits> sums(at.warp_m, at.warp_n, at.n0 + at.warp_n < p.n ? p.m - at.m0 - at.warp_m : 0);
  const int64_t steps = (p.k + BK - 1) / BK;
  const int step0 = static_cast<int>(steps * at.slice / p.slices) + at.group;
  const int step1 = static_cast<int>(steps * (at.slice + 1) / p.slices);
  const int outer = at.batch / p.batch_inner, inner = at.batch - outer * p.batch_inner;

  ptx::grid_dependency_wait();
  const uint32_t ring = ptx::smem_addr(smem) + 4 * at.group * Traits::kRing;
  Operand<BM, Traits::kKMajorA, kGroupThreads> a(p.a + outer * p.a_batch[0] + inner * p.a_batch[1], p.lda, at.m0, p.m,
                                                 step0 * BK, GROUPS * BK, p.wide_a);
  Operand<BN, Traits::kKMajorB, kGroupThreads> b(p.b + outer * p.b_batch[0] + inner * p.b_batch[1], p.ldb, at.n0, p.n,
                                                 step0 * BK, GROUPS * BK, p.wide_b);
  int next = step0;  // the step to fetch
  const auto fetch = [&](int stage) {
    if (next < step1) {
      const int k_left = p.k - next * BK, thread = ptx::opaque(threadIdx.x) % kGroupThreads;
      a.fetch(ring + 4 * stage * Traits::kStage, k_left, thread);
      b.fetch(ring + 4 * (stage * Traits::kStage + BM * BK), k_left, thread);
    }
    next += GROUPS;
    ptx::cp_async_commit();
  };
#pragma unroll 1
  for (int s = 0; s < STAGES - 1; ++s) fetch(s);
  int stage = 0;
#pragma unroll 1
  while (next - (STAGES - 1) * GROUPS < step1) {
    ptx::cp_async_wait<STAGES - 2>();
    if constexpr (GROUPS == 1) {
      __syncthreads();
    } else {
      ptx::barrier_sync(1 + at.group, kGroupThreads);
    }
    fetch(stage == 0 ? STAGES - 1 : stage - 1);  // the stage that all warps of the group have read before the barrier
    sums.add(ring + 4 * stage * Traits::kStage);
    stage = stage == STAGES - 1 ? 0 : stage + 1;
  }
  ptx::grid_launch_dependents();
  __syncthreads();  // all stages have been read, and no copy is in flight

  const Place<Traits> to(p, ptx::opaque(blockIdx.x), ptx::opaque(threadIdx.x));  // again, to save registers until here
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
      sums.for_fours([&](int row, int column, const double (&four)[4]) {
        double2* const four_at = reinterpret_cast<double2*>(results + result_at(row, column));
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
    double* const partial = p.partial + (static_cast<int64_t>(to.slice) * p.batches + to.batch) * p.m * p.pitch;
    sums.for_fours([&](int row, int column, const double (&four)[4]) {
      if (row0 + row >= p.m || column0 + column >= p.pitch) return;
      double* const four_at = partial + static_cast<int64_t>(row0 + row) * p.pitch + column0 + column;
      reinterpret_cast<double2*>(four_at)[0] = make_double2(four[0], four[1]);
      reinterpret_cast<double2*>(four_at)[1] = make_double2(four[2], four[3]);
    });
    return;
  }
  float* const scratch = smem + Traits::kSumsBytes / 4 + to.thread / 32 * (Traits::WM * WN);
  emit(p.epilogue, tile::batch_offset(p.epilogue, to.batch), sums, scratch, row0, column0);
}

constexpr int kAddThreads = 256, kAddWarps = kAddThreads / 32;

/// The run-time parameters of add_slices().
struct AddParams {
  const double* partial;  // (slices, count): sums in rows of `pitch`, of which the first n count
  int slices, ways;
  uint32_t pitch, count;
  tile::EpilogueParams epilogue;
};

/// Adds up the partial sums of the slices and applies the epilogue. A block has kAddWarps / ways runs of 32 sums that
/// are neighbours in the workspace. Each of the `ways` warps of a run, a divisor of kAddWarps, adds every ways-th
/// slice. Then their sums are added in order.
static __global__ void __launch_bounds__(kAddThreads) add_slices(const __grid_constant__ AddParams p) {
  __shared__ double sums[kAddWarps][32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, way = warp % p.ways;
  const uint32_t run = blockIdx.x * (kAddWarps / p.ways) + warp / p.ways, at = run * 32 + lane;
  ptx::grid_dependency_wait();
  ptx::grid_launch_dependents();
  double sum = 0.0;
  if (at < p.count) {
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
  const uint32_t row_id = at / p.pitch, column = at - row_id * p.pitch;
  if (at >= p.count || column >= p.epilogue.n) return;
  const uint32_t m = static_cast<uint32_t>(p.epilogue.m), batch = row_id / m, row = row_id - batch * m;
  float v[8] = {static_cast<float>(sum)};
  tile::finish<float>(p.epilogue, tile::batch_offset(p.epilogue, batch), row, column, {0, 1}, true, v);
}

}  // namespace hgemm::sm90_dmma
