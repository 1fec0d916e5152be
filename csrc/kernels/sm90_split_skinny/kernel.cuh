// Float32 GEMMs with a short side on tensor cores (sm_90a): few rows, or few columns.
//
// The operands are sums of three bfloat16 planes, and six of the nine plane products are added up, as in sm90_split.
// The planes of the short operand x are made by a pass (tile/split_planes.h). Those of the long operand W would take
// more time to write and to read again than W itself, so W stays float32 in memory and in shared memory. The warps that
// multiply read it from there, split it in registers, and give the planes to wgmma as its A operand, which may lie in
// registers. So D^T = W x^T: the rows of W are the M of the instruction, and those of x its N.
//
// The sums are those of sm90_split: an accumulator holds 64 k of the product of the first planes, and is then added to
// a float32 sum. A second accumulator beside each sum takes the other five plane products, and what the roundings of
// the sum lose.
//
// W may be K-major or MN-major. A lane reads two adjacent elements at a time: two k of a row, or two rows at one k.
// Which row of W is which row of the instruction is chosen so that these reads are free of bank conflicts (Rows).
//
// The kernel is persistent. If there are fewer tiles than SMs, K is split into slices, whose blocks store their sums in
// the workspace. Each warp has its own part of a tile, and a counter for it. The last warp to store its sums of a part
// adds up the sums of all slices, in the slices' order.
//
// Results that planes cannot represent are computed again in float64: those that are not finite, or tiny, those of a
// row of x that the pass has flagged, and those of a row of W in which the warp has found elements that are too small
// for planes. Such a warp sets its sums of the row to NaN.
//
// Barriers.
//
//   mbarrier          completes a phase      who arrives                              who waits
//   full[STAGES]      kFullArrivals and      the producer thread, which announces     the consumer threads, before they
//                     kStageBytes            kStageBytes; TMA loads complete them     read the stage
//   empty[STAGES]     kEmptyArrivals         one lane of each consumer warp, once     the producer thread, before it
//                                            the warp has read the stage              loads the stage
//
//   named barrier     threads                who arrives                              who waits
//   kMathOrder + g    kConsumerThreads       warpgroup 1 - g, once it has started     warpgroup g, before it starts the
//                                            all wgmma of 16 k but the last;          wgmma of 16 k; warpgroup 0 also
//                                            warpgroup 1 also once at first           once at its end
//
//   All threads of the block meet once, when the mbarriers are made.
//
// Timeline of each role:
//
//   producer thread (one of warp 8)
//     prefetch the first stages of W to L2; wait for the kernel that makes the planes of x
//     for each unit of work, for each stage of K: wait empty; announce the bytes on full; start the TMA loads
//   consumer warpgroup g
//     wait for the kernel that makes the planes; warpgroup 1: arrive at kMathOrder
//     for each unit of work:
//       for each stage of K: wait full
//                            for each 16 k: read W; wait until the registers of earlier planes are free; split
//                                           wait kMathOrder + g; start wgmma; arrive at kMathOrder + 1 - g
//                            wait for wgmma and add up; release the stage
//       a slice: store the sums; if this warp is the last of its part of the tile, add up all slices,
//                otherwise go on to the next unit
//       epilogue
//     warpgroup 0: wait kMathOrder
#pragma once

#include <cuda.h>
#include <cuda_bf16.h>

#include <cmath>
#include <cstdint>

#include "core/fast_divisor.h"
#include "core/problem.h"
#include "kernels/sm90_split_skinny/config.h"
#include "ptx/dependent_launch.cuh"
#include "ptx/elect.cuh"
#include "ptx/global.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/smem_addr.cuh"
#include "ptx/tma.cuh"
#include "ptx/wgmma.cuh"
#include "tile/epilogue.cuh"
#include "tile/ring.cuh"
#include "tile/split_product.cuh"
#include "tile/split_sums.cuh"

namespace hgemm::sm90_split_skinny {

namespace split = tile::split;

/// Everything that a kernel is compiled for.
template <class Config_, Major kMajor_>
struct Traits : Config_ {
  static constexpr bool kKMajor = kMajor_ == Major::kK;  // W
};

struct Params {
  CUtensorMap w, planes;
  split::Operand long_side, short_side;  // W, which has no planes, and x
  int32_t w_moves[2];                    // outer, inner: 0 where a batch index does not move W, else ~0
  tile::EpilogueParams epilogue;
  bool swapped;   // D's rows are those of W
  bool is_plain;  // the epilogue has neither C nor an activation
  int k, steps, slice_steps;
  uint32_t units;
  FastDivisor col_tiles, slices, row_tiles, batch_inner;
  float* sums;  // of the slices: (slices, tiles, warps, sums of a warp)
  unsigned* counters;
};

constexpr int kMathOrder = 1;    // (2) named barriers: the consumer warpgroup may start the wgmma of 16 k
constexpr int kSteps = 4;        // of 16 k, in a stage
constexpr int kCarrySteps = 16;  // stages from one Sums::carry() to the next
constexpr int kPrefetch = 4;     // stages of W that are prefetched to L2 while the planes are made

/// Magnitudes, as bits of a float32: see split_pass.cu. A row of W whose 64 k in a stage have an element smaller than
/// kTiny, and none of at least kPlain, is not multiplied by planes.
constexpr uint32_t kTiny = (127 - 110) << 23, kPlain = (127 - 80) << 23;

/// A unit of work: a tile, by its first rows of W and of x and its matrix of the batch, and a slice of K. `tile` counts
/// the tiles of all matrices.
struct Unit {
  int row0, col0, outer, inner;
  uint32_t tile, slice;
  int first, count;  // stages
};
template <class Traits>
__device__ __forceinline__ Unit unit_at(const Params& p, uint32_t unit) {
  const uint32_t of_cols = p.col_tiles.quotient(unit), col = unit - of_cols * p.col_tiles.divisor();
  const uint32_t of_slices = p.slices.quotient(of_cols), slice = of_cols - of_slices * p.slices.divisor();
  const uint32_t batch = p.row_tiles.quotient(of_slices), row = of_slices - batch * p.row_tiles.divisor();
  const uint32_t outer = p.batch_inner.quotient(batch), inner = batch - outer * p.batch_inner.divisor();
  const int first = static_cast<int>(slice) * p.slice_steps;
  return {static_cast<int>(row) * Traits::ROWS,
          static_cast<int>(col) * Traits::COLS,
          static_cast<int>(outer),
          static_cast<int>(inner),
          of_slices * p.col_tiles.divisor() + col,
          slice,
          first,
          min(p.slice_steps, p.steps - first)};
}

/// Which rows of W a lane has. Of the 16 rows of a warp, row `first()` is the instruction's row l / 4, and the row
/// `kNext` below it the instruction's row 8 + l / 4.
template <class Traits>
struct Rows {
  static constexpr int kNext = Traits::kKMajor ? 8 : 1;
  __device__ static __forceinline__ int first() {
    const int g = threadIdx.x % 32 / 4;
    return Traits::kKMajor ? (g * 2 & 7) | g >> 2 : g * 2;
  }
};

/// Visits the TMA boxes of a stage of W: their offset in the stage and their coordinates. K-major, a box has 32 k of
/// all rows; MN-major, 32 rows and 64 k.
template <class Traits, class Visit>
__device__ __forceinline__ void each_box(const Params& p, const Unit& at, int step, const Visit& visit) {
  const int k = (at.first + step) * Traits::BK, inner = at.inner & p.w_moves[1], outer = at.outer & p.w_moves[0];
  if constexpr (Traits::kKMajor) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      visit(i * Traits::ROWS * Traits::kLine, ptx::TmaCoord{k + 32 * i, at.row0, inner, outer});
    }
  } else {
#pragma unroll
    for (int i = 0; i < Traits::ROWS / 32; ++i) {
      visit(i * Traits::BK * Traits::kLine, ptx::TmaCoord{at.row0 + 32 * i, k, inner, outer});
    }
  }
}

/// The elements of W that a lane multiplies in 16 k: [row][k / 8][k % 2].
struct Fragment {
  float x[2][2][2];
};

/// Reads 16 k of this lane's rows from a stage of W.
template <class Traits>
__device__ __forceinline__ Fragment read(uint32_t stage_w, int step) {
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, row0 = static_cast<int>(threadIdx.x) / 32 * 16;
  const auto read_2 = [](uint32_t from, float& a, float& b) {
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];\n" : "=f"(a), "=f"(b) : "r"(from) : "memory");
  };
  Fragment out;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if constexpr (Traits::kKMajor) {  // i: row
        const int row = row0 + Rows<Traits>::first() + 8 * i, chunk = step % 2 * 4 + half * 2 + t / 2;
        const uint32_t line = stage_w + step / 2 * Traits::ROWS * Traits::kLine + row * Traits::kLine;
        read_2(line + ((chunk ^ row % 8) * 16 + t % 2 * 8), out.x[i][half][0], out.x[i][half][1]);
      } else {  // i: k
        const int k = step * 16 + half * 8 + t * 2 + i, chunk = row0 % 32 / 4 + g / 2;
        const uint32_t line = stage_w + row0 / 32 * Traits::BK * Traits::kLine + k * Traits::kLine;
        read_2(line + ((chunk ^ (t * 2 + i)) * 16 + g % 2 * 8), out.x[0][half][i], out.x[1][half][i]);
      }
    }
  }
  return out;
}

/// Splits a fragment into planes, as wgmma takes them from registers: [plane][half * 2 + row].
__device__ __forceinline__ void split_in_registers(const Fragment& w, uint32_t (&planes)[split::kPlanes][4]) {
#pragma unroll
  for (int row = 0; row < 2; ++row) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float a = w.x[row][half][0], b = w.x[row][half][1];
#pragma unroll
      for (int plane = 0; plane < split::kPlanes; ++plane) {
        uint32_t pair;
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;\n" : "=r"(pair) : "f"(b), "f"(a));
        planes[plane][half * 2 + row] = pair;
        a -= __uint_as_float(pair << 16);
        b -= __uint_as_float(pair & 0xffff0000);
      }
    }
  }
}

/// The elements of this lane's two rows of W that are not zero: twice the bits of the least magnitude, less one.
struct Least {
  uint32_t of_row[2] = {~0u, ~0u};

  __device__ __forceinline__ void add(const Fragment& w) {
#pragma unroll
    for (int row = 0; row < 2; ++row) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const uint32_t bits = __float_as_uint(w.x[row][half][i]);
          of_row[row] = min(of_row[row], bits + bits - 1);
        }
      }
    }
  }
  __device__ __forceinline__ bool is_tiny() const { return min(of_row[0], of_row[1]) < 2 * kTiny - 1; }
};

/// Sets `poisoned` for rows of this lane whose elements in the stage are too small for planes. All lanes call it.
template <class Traits>
__device__ __forceinline__ void find_tiny_rows(uint32_t stage_w, const Least& least, bool (&poisoned)[2]) {
  uint32_t tiny[2], most[2] = {0, 0};
#pragma unroll
  for (int row = 0; row < 2; ++row) tiny[row] = least.of_row[row] < 2 * kTiny - 1;
#pragma unroll 1
  for (int step = 0; step < kSteps; ++step) {
    const Fragment w = read<Traits>(stage_w, step);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      most[i / 4] = max(most[i / 4], __float_as_uint(w.x[i / 4][i / 2 % 2][i % 2]) & 0x7fffffff);
    }
  }
#pragma unroll
  for (int row = 0; row < 2; ++row) {
#pragma unroll
    for (int mask = 1; mask < 4; mask *= 2) {
      tiny[row] |= __shfl_xor_sync(~0u, tiny[row], mask);
      most[row] = max(most[row], __shfl_xor_sync(~0u, most[row], mask));
    }
    poisoned[row] |= tiny[row] && most[row] < kPlain;
  }
}

/// A consumer thread's part of a tile.
template <class Traits>
struct Sums : split::TwoSums<Traits::COLS / 2> {
  using Base = split::TwoSums<Traits::COLS / 2>;
  using Base::high, Base::low, Base::kCount;

  /// Adds the products of a stage: its part of W, and its planes of x. The warpgroup takes its turn at the tensor cores
  /// for each 16 k, and hands over when all but the last wgmma have been started.
  __device__ __forceinline__ void add(uint32_t stage_w, uint32_t stage_x, int group, bool carries, Least& least) {
    float x[kCount];
    uint32_t w[kSteps][split::kPlanes][4];
    const uint64_t of_x = ptx::wgmma_descriptor(stage_x, 0, 8 * Traits::kLine);
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const Fragment from = read<Traits>(stage_w, step);
      if (step >= Traits::kBuffers) ptx::wgmma_wait<Traits::kBuffers - 1>();
      split_in_registers(from, w[step]);
      least.add(from);
      const auto plane = [&](int i) { return ptx::wgmma_advance(of_x, i * Traits::kPlaneBytes + step * 32); };
      // W is split before the turn begins. Without a branch between them ptxas would move the first splitting behind
      // it.
      if (step == 0 && carries) this->carry();
      ptx::barrier_sync(kMathOrder + group, Traits::kConsumerThreads);
      ptx::wgmma_fence();
      ptx::wgmma_bf16_a<Traits::COLS>(x, w[step][0], plane(0), step > 0);
      if (step == kSteps - 1) ptx::wgmma_commit();
      ptx::wgmma_bf16_a<Traits::COLS>(low, w[step][2], plane(0), 1);
      ptx::wgmma_bf16_a<Traits::COLS>(low, w[step][1], plane(1), 1);
      ptx::wgmma_bf16_a<Traits::COLS>(low, w[step][0], plane(2), 1);
      ptx::wgmma_bf16_a<Traits::COLS>(low, w[step][1], plane(0), 1);
      ptx::barrier_arrive(kMathOrder + 1 - group, Traits::kConsumerThreads);
      ptx::wgmma_bf16_a<Traits::COLS>(low, w[step][0], plane(1), 1);
      ptx::wgmma_commit();
    }
    ptx::wgmma_wait<1>();
    this->add_first(x);
    ptx::wgmma_wait<0>();
    this->add_rest(x);
  }

  /// Leaves the sums in `high`, after the last stage: NaN in rows that are poisoned.
  __device__ __forceinline__ void finish(const bool (&poisoned)[2]) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) high[i] = poisoned[i / 2 % 2] ? NAN : high[i] + low[i];
  }
};

/// Stores a warp's sums of a slice in the workspace. The last warp to do so for its part of the tile gets the sums over
/// all slices in `sums`, and true; the others get false.
template <class Traits>
__device__ __forceinline__ bool add_slices(const Params& p, const Unit& unit, float (&sums)[Traits::COLS / 2]) {
  constexpr int kCount = Traits::COLS / 2, kWarpSums = 32 * kCount;
  const uint32_t slices = p.slices.divisor(), tiles = p.units / slices, lane = threadIdx.x % 32;
  const uint32_t part = unit.tile * Traits::kConsumerWarps + threadIdx.x / 32;
  const int64_t in_slice = int64_t{tiles} * Traits::kConsumerWarps * kWarpSums;
  float* const at = p.sums + int64_t{part} * kWarpSums + lane * 4;
#pragma unroll
  for (int i = 0; i < kCount; i += 4) {
    *reinterpret_cast<float4*>(at + unit.slice * in_slice + i * 32) =
        make_float4(sums[i], sums[i + 1], sums[i + 2], sums[i + 3]);
  }
  __threadfence();
  __syncwarp();
  const unsigned before = lane == 0 ? atomicAdd(p.counters + part, 1) : 0;
  if (__shfl_sync(~0u, before, 0) + 1 != slices) return false;
  __threadfence();
  // Loads of several slices are in flight at a time, since each takes as long as a stage's wgmma.
  constexpr int kAtOnce = 16, kSlices = 4;
#pragma unroll
  for (int first = 0; first < kCount; first += kAtOnce) {
    double total[kAtOnce] = {};
#pragma unroll 1
    for (uint32_t s0 = 0; s0 < slices; s0 += kSlices) {
      float4 v[kSlices][kAtOnce / 4];
#pragma unroll
      for (uint32_t s = 0; s < kSlices; ++s) {
#pragma unroll
        for (int i = 0; i < kAtOnce / 4; ++i) {
          const uint32_t slice = min(s0 + s, slices - 1);
          v[s][i] = ptx::ld_l2_16(at + slice * in_slice + (first + i * 4) * 32);
        }
      }
#pragma unroll
      for (uint32_t s = 0; s < kSlices; ++s) {
        if (s0 + s >= slices) break;
#pragma unroll
        for (int i = 0; i < kAtOnce / 4; ++i) {
          total[i * 4] += v[s][i].x, total[i * 4 + 1] += v[s][i].y;
          total[i * 4 + 2] += v[s][i].z, total[i * 4 + 3] += v[s][i].w;
        }
      }
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) sums[first + i] = static_cast<float>(total[i]);
  }
  return true;
}

/// The sum over K of the products of a row of W and a row of x in float64. A sum beyond the largest float32 becomes
/// infinite, as it does in float32.
__device__ __forceinline__ float exact_sum(const Params& p, const split::Work& work, int row, int col) {
  constexpr double kLargest = 3.40282346638528859811704183484516925440e+38;
  const float* const w = split::row_of(p.long_side, work, row);
  const float* const x = split::row_of(p.short_side, work, col);
  double sum = 0;
#pragma unroll 4
  for (int k = 0; k < p.k; ++k) {
    sum = fma(double{w[k * p.long_side.k_stride]}, double{x[k * p.short_side.k_stride]}, sum);
    if (fabs(sum) > kLargest) sum = copysign(double{INFINITY}, sum);
  }
  return static_cast<float>(sum);
}

/// Writes act(alpha * sums + beta * C + bias) to D for a warp's 16 rows of W from `row0` on and the tile's rows of x,
/// eight of which go through `scratch` at a time, so that a lane has four sums that are neighbours in D. Results that
/// planes cannot represent are computed again on the way. `any_tiny`: some row of x may be flagged.
template <class Traits>
__device__ __forceinline__ void emit(const Params& p, const Unit& unit, int row0, const float (&sums)[Traits::COLS / 2],
                                     bool any_tiny, float* scratch) {
  const tile::EpilogueParams& e = p.epilogue;
  const split::Work work{unit.row0, unit.col0, unit.outer, unit.inner};
  const int64_t d0 = unit.outer * e.d_batch[0] + unit.inner * e.d_batch[1];
  const int64_t c0 = unit.outer * e.c_batch[0] + unit.inner * e.c_batch[1];
  const int lane = threadIdx.x % 32, matrix = split::matrix_of(p.short_side, work);
  const int rows = p.long_side.rows, cols = p.short_side.rows;
  constexpr int kStride = Traits::kScratchRow;
  // The loop is not unrolled, because its body is long. The sums are in registers, so their indices are constants.
#pragma unroll 1
  for (int part = 0; part < Traits::COLS / 8; ++part) {
    const int part0 = unit.col0 + part * 8;
    if (part0 >= cols) break;
    __syncwarp();
    float* const to = scratch + lane % 4 * 2 * kStride + Rows<Traits>::first();
#pragma unroll
    for (int i = 0; i < Traits::COLS / 8; ++i) {
      if (i != part) continue;
      to[0] = sums[i * 4], to[kStride] = sums[i * 4 + 1];
      to[Rows<Traits>::kNext] = sums[i * 4 + 2], to[kStride + Rows<Traits>::kNext] = sums[i * 4 + 3];
    }
    __syncwarp();
    // Four neighbours in D: along the rows of W, or, if swapped, along those of x.
    const int row = row0 + (p.swapped ? lane / 2 : lane % 4 * 4), col = part0 + (p.swapped ? lane % 2 * 4 : lane / 4);
    const float* const from = scratch + (col - part0) * kStride + (row - row0);
    const int inside = row >= rows || col >= cols ? 0 : min(p.swapped ? cols - col : rows - row, 4);
    float v[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      v[i] = i < inside ? from[p.swapped ? i * kStride : i] : 0.0f;
      const int row_i = p.swapped ? row : row + i, col_i = p.swapped ? col + i : col;
      const bool is_bad =
          i < inside && (!split::is_held(v[i]) || (any_tiny && split::is_tiny(p.short_side, matrix, col_i)));
      if (is_bad) v[i] = exact_sum(p, work, row_i, col_i);
    }
    if (inside <= 0) continue;
    const split::Four at{p.swapped ? row : col, p.swapped ? col : row, 0, inside};
    float bias[4];
    split::load_bias(e, at.col, 0, inside, bias);
    split::finish(e, /*pairs=*/0, c0, d0, at, make_float4(v[0], v[1], v[2], v[3]), bias);
  }
}

/// Writes alpha * sums + bias to D, straight from the registers. A lane has two rows of W, and two neighbouring rows of
/// x of each eight.
template <class Traits>
__device__ __forceinline__ void emit_plain(const Params& p, const Unit& unit, int row0,
                                           const float (&sums)[Traits::COLS / 2]) {
  const tile::EpilogueParams& e = p.epilogue;
  float* const d = static_cast<float*>(e.d) + unit.outer * e.d_batch[0] + unit.inner * e.d_batch[1];
  const float* const bias = static_cast<const float*>(e.bias);
  const int64_t row_stride = p.swapped ? e.ldd : 1, col_stride = p.swapped ? 1 : e.ldd;
  const int row = row0 + Rows<Traits>::first(), col = unit.col0 + static_cast<int>(threadIdx.x) % 4 * 2;
  float of_row[2] = {-0.0f, -0.0f};  // adding -0 keeps the sign of a zero
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int at = row + r * Rows<Traits>::kNext;
    if (bias != nullptr && !p.swapped && at < p.long_side.rows) of_row[r] = bias[at];
  }
#pragma unroll
  for (int i = 0; i < Traits::COLS / 2; ++i) {
    const int at_row = row + i / 2 % 2 * Rows<Traits>::kNext, at_col = col + i / 4 * 8 + i % 2;
    if (at_row >= p.long_side.rows || at_col >= p.short_side.rows) continue;
    const float add = bias != nullptr && p.swapped ? bias[at_col] : of_row[i / 2 % 2];
    d[at_row * row_stride + at_col * col_stride] = sums[i] * e.alpha + add;
  }
}

template <class Traits>
__global__ void __launch_bounds__(Traits::kThreads, 1) kernel(const __grid_constant__ Params p) {
  extern __shared__ __align__(1024) unsigned char bytes[];
  const uint32_t stages = ptx::smem_addr(bytes);
  const uint32_t full = stages + Traits::STAGES * Traits::kStageBytes, empty = full + Traits::STAGES * 8;
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0), lane = threadIdx.x % 32;

  ptx::grid_launch_dependents();
  if (threadIdx.x == 0) {
    for (int s = 0; s < Traits::STAGES; ++s) {
      ptx::mbarrier_init(full + 8 * s, Traits::kFullArrivals);
      ptx::mbarrier_init(empty + 8 * s, Traits::kEmptyArrivals);
    }
    ptx::fence_mbarrier_init();
  }
  __syncthreads();

  tile::Ring<Traits::STAGES> ring;  // the position of this thread's role in the ring
  if (warp >= Traits::kConsumerWarps) {
    ptx::release_registers<24>();
    if (warp == Traits::kConsumerWarps && ptx::elect_one()) {
      ptx::tma_prefetch(&p.w);
      ptx::tma_prefetch(&p.planes);
      const Unit begin = unit_at<Traits>(p, blockIdx.x);
      for (int step = 0; step < min(kPrefetch, begin.count); ++step) {
        each_box<Traits>(p, begin, step, [&](int, ptx::TmaCoord box) { ptx::tma_prefetch_box(&p.w, box); });
      }
      const uint64_t read_once = ptx::evict_first_policy();
      ptx::grid_dependency_wait();
      for (uint32_t unit = blockIdx.x; unit < p.units; unit += gridDim.x) {
        const Unit at = unit_at<Traits>(p, unit);
        const int matrix = split::matrix_of(p.short_side, {0, 0, at.outer, at.inner});
        for (int step = 0; step < at.count; ++step, ring.advance()) {
          const uint32_t bar = full + 8 * ring.stage, to = stages + ring.stage * Traits::kStageBytes;
          ptx::mbarrier_wait(empty + 8 * ring.stage, ring.parity ^ 1);
          ptx::mbarrier_arrive_expect_tx(bar, Traits::kStageBytes);
          each_box<Traits>(p, at, step, [&](int offset, ptx::TmaCoord box) {
            const uint32_t dst = to + Traits::kStageBytesX + offset;
            if (p.col_tiles.divisor() == 1) {
              ptx::tma_load_hinted(dst, &p.w, bar, box, read_once);
            } else {  // other tiles read the same
              ptx::tma_load(dst, &p.w, bar, box);
            }
          });
          ptx::tma_load(to, &p.planes, bar, {(at.first + step) * Traits::BK, at.col0, 0, matrix});
        }
      }
    }
  } else {
    ptx::claim_registers<240>();
    ptx::grid_dependency_wait();
    const int group = warp / 4;
    if (group == 1) ptx::barrier_arrive(kMathOrder, Traits::kConsumerThreads);
    float* const scratch = reinterpret_cast<float*>(bytes + Traits::kScratchAt + warp * Traits::kScratchBytes);
    for (uint32_t unit = blockIdx.x; unit < p.units; unit += gridDim.x) {
      const Unit at = unit_at<Traits>(p, unit);
      Sums<Traits> sums;
      sums.clear();
      bool poisoned[2] = {false, false};
      for (int step = 0; step < at.count; ++step, ring.advance()) {
        const uint32_t stage_x = stages + ring.stage * Traits::kStageBytes, stage_w = stage_x + Traits::kStageBytesX;
        ptx::mbarrier_wait(full + 8 * ring.stage, ring.parity);
        Least least;
        sums.add(stage_w, stage_x, group, step % kCarrySteps == kCarrySteps - 1, least);
        if (__any_sync(~0u, least.is_tiny())) find_tiny_rows<Traits>(stage_w, least, poisoned);
        if (lane == 0) ptx::mbarrier_arrive(empty + 8 * ring.stage);
      }
      sums.finish(poisoned);
      if (p.slices.divisor() > 1 && !add_slices<Traits>(p, at, sums.high)) continue;
      const split::Work work{at.row0, at.col0, at.outer, at.inner};
      const bool any_tiny =
          __any_sync(~0u, split::finds_tiny(p.short_side, split::matrix_of(p.short_side, work), at.col0, Traits::COLS));
      bool is_held = true;
#pragma unroll
      for (int i = 0; i < Sums<Traits>::kCount; ++i) is_held &= split::is_held(sums.high[i]);
      if (p.is_plain && !any_tiny && __all_sync(~0u, is_held)) {
        emit_plain<Traits>(p, at, at.row0 + warp * 16, sums.high);
      } else {
        emit<Traits>(p, at, at.row0 + warp * 16, sums.high, any_tiny, scratch);
      }
    }
    if (group == 0) ptx::barrier_sync(kMathOrder, Traits::kConsumerThreads);
  }
}

}  // namespace hgemm::sm90_split_skinny
