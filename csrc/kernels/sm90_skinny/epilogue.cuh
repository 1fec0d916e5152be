// The epilogue: from a warp's sums to D. With slices of K the sums are first reduced over the cluster.
#pragma once

#include <cstdint>
#include <type_traits>

#include "core/convert.cuh"
#include "core/problem.h"
#include "kernels/sm90_skinny/traits.cuh"
#include "ptx/cluster.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/smem_addr.cuh"
#include "tile/epilogue.cuh"
#include "tile/fast_activation.cuh"
#include "tile/with_constant.cuh"

namespace hgemm::sm90_skinny {

template <Activation kAct>
using Act = std::integral_constant<Activation, kAct>;

/// Stores act(gate) * value for eight adjacent rows of a gated tile, from `row` on, and row `col` of x. The first four
/// rows belong to the gate's matrix, the other four to the values'.
template <class T>
__device__ __forceinline__ void finish_gated(const Params& p, const float (&v)[8], int col, int row) {
  float gate[kGateRows];
  const auto activate = [&](auto act) {
#pragma unroll
    for (int i = 0; i < kGateRows; ++i) gate[i] = tile::fast_activate<decltype(act)::value>(v[i]);
  };
  switch (p.gate) {
    case Activation::kRelu: activate(Act<Activation::kRelu>()); break;
    case Activation::kGelu: activate(Act<Activation::kGelu>()); break;
    case Activation::kGeluTanh: activate(Act<Activation::kGeluTanh>()); break;
    case Activation::kSilu: activate(Act<Activation::kSilu>()); break;
    default:
#pragma unroll
      for (int i = 0; i < kGateRows; ++i) gate[i] = v[i];
  }
  struct alignas(kGateRows * sizeof(T)) Four {
    T x[kGateRows];
  } four;
#pragma unroll
  for (int i = 0; i < kGateRows; ++i) four.x[i] = from_float<T>(gate[i] * v[kGateRows + i]);
  T* const d = static_cast<T*>(p.epilogue.d) + col * p.epilogue.ldd + row / 2;
  if (p.epilogue.wide_d) {
    *reinterpret_cast<Four*>(d) = four;
  } else {
#pragma unroll
    for (int i = 0; i < kGateRows; ++i) d[i] = four.x[i];
  }
}

/// Stores eight sums of an int8 product, which are adjacent in a row of D. D's rows start at multiples of 32 bytes.
__device__ __forceinline__ void store_int8(const Params& p, const int32_t (&v)[8], int row, int col) {
  int32_t* const d = static_cast<int32_t*>(p.epilogue.d) + row * p.epilogue.ldd + col;
  reinterpret_cast<int4*>(d)[0] = make_int4(v[0], v[1], v[2], v[3]);
  reinterpret_cast<int4*>(d)[1] = make_int4(v[4], v[5], v[6], v[7]);
}

/// The first row of x whose sums this warp has.
template <class Traits>
__device__ __forceinline__ int first_col() {
  return Traits::kColGroups == 1 ? 0 : static_cast<int>(threadIdx.x) / 128 % Traits::kColGroups * Traits::kWarpCols;
}

/// Stores a warp's sums of two parts of W (transpose.cuh): 32 rows of W from `row0` on, of which `rows` exist.
template <class Traits>
__device__ __forceinline__ void finish_parts(const Params& p, const int32_t (&acc)[2][Traits::kWarpCols / 2],
                                             int32_t* patch, int row0, int rows) {
  constexpr int kStride = Traits::kPatchStride;
  const int lane = threadIdx.x % 32, row = lane % 4 * 8, col = first_col<Traits>() + lane / 4;
#pragma unroll
  for (int c0 = 0; c0 < Traits::kWarpCols; c0 += Traits::kPatchCols) {
    if (first_col<Traits>() + c0 >= p.cols) break;
#pragma unroll
    for (int part = 0; part < 2; ++part) {
      const int32_t* const from = acc[part] + c0 / 2;
      int32_t* const at = patch + lane % 4 * 2 * kStride + lane / 4 * 4 + part * 2;
      at[0] = from[0];
      at[kStride] = from[1];
      at[1] = from[2];
      at[kStride + 1] = from[3];
    }
    __syncwarp();
    if (row < rows && c0 + col < p.cols) {
      int32_t v[8];
#pragma unroll
      for (int i = 0; i < 8; ++i) v[i] = patch[lane / 4 * kStride + row + i];
      store_int8(p, v, c0 + col, row0 + row);
    }
    __syncwarp();
  }
}

/// Whether finish_unaligned() does what tile::finish() does: D has the type of the operands, and nothing but a bias is
/// added.
__device__ __forceinline__ bool is_plain(const tile::EpilogueParams& e) {
  return !e.out_f32 && e.c == nullptr && e.pre_activation == nullptr && e.act == Activation::kNone;
}

/// How sums are stored.
enum class Stores {
  kAny,        // eight adjacent elements of D by a lane, with the whole epilogue
  kCommon,     // the same where tile::is_common()
  kUnaligned,  // adjacent elements of D by adjacent lanes, where is_plain()
};

/// Finishes and stores the `cols` rows of x of a patch, in which `rows` of the 16 rows of W exist. The patch begins at
/// row `row0` of W and row `at_x` of x. Adjacent lanes store adjacent elements of D: where D's rows start at no
/// multiples of 16 bytes, eight elements of a lane would take eight instructions, of which each writes to 32 places.
template <class Traits>
__device__ __forceinline__ void finish_unaligned(const Params& p, const float* patch, int row0, int rows, int at_x,
                                                 int cols, tile::BatchOffset offset) {
  using T = typename Traits::T;
  constexpr int kRows = 16, kCols = Traits::kPatchCols, kStride = Traits::kPatchStride;
  const tile::EpilogueParams& e = p.epilogue;
  // A line is the patch's part of a row of D. The warp stores `step` lines at a time.
  const int width = p.swapped ? kCols : kRows, step = 32 / width;
  const int at = threadIdx.x % width, line = threadIdx.x % 32 / width;
  const int lines = p.swapped ? rows : cols, first_line = p.swapped ? row0 : at_x;
  if (at >= (p.swapped ? cols : rows)) return;
  const int64_t d_col = (p.swapped ? at_x : row0) + at;
  const float bias = e.bias == nullptr ? 0.0f : to_float(static_cast<const T*>(e.bias)[d_col]);
  const float* const from = patch + (p.swapped ? at * kStride + line : line * kStride + at);
  const int next = step * (p.swapped ? 1 : kStride);
  T* const to = static_cast<T*>(e.d) + offset.d + (first_line + line) * e.ldd + d_col;
#pragma unroll
  for (int i = 0; i < kRows * kCols / 32; ++i) {
    if (line + i * step >= lines) break;
    float v = from[i * next] * e.alpha;
    if (e.bias != nullptr) v += bias;  // adding 0 would turn -0 into 0
    to[i * step * e.ldd] = from_float<T>(v);
  }
}

/// Finishes and stores a warp's sums: 16 rows of W from `row0` on, of which `rows` exist. A lane stores eight elements
/// that are adjacent in D, unless Stores::kUnaligned. They run along the rows of W or, if swapped, along the rows of x.
/// The sums are transposed between lanes in `patch`, kPatchCols lines of kPatchStride sums.
template <class Traits, Stores kStores>
__device__ __forceinline__ void finish_pieces(const Params& p,
                                              const typename Traits::Sum (&acc)[Traits::PARTS][Traits::kWarpCols / 2],
                                              typename Traits::Sum* patch, int row0, int rows,
                                              tile::BatchOffset offset) {
  using Sum = typename Traits::Sum;
  constexpr int kCols = Traits::kPatchCols, kStride = Traits::kPatchStride;
  const int lane = threadIdx.x % 32;
  const bool swapped = !Traits::kGated && p.swapped;
  const int row = swapped ? lane % 16 : lane % 2 * 8;
  const int col = swapped ? lane / 16 * 8 : lane / 2;
  // Not unrolled with the general epilogue, which is most of a kernel's code: there is one copy of it then.
  constexpr bool kGeneral = std::is_same_v<Sum, float> && !Traits::kGated && kStores == Stores::kAny;
  constexpr int kPieces = Traits::COLS / kCols, kUnroll = kGeneral ? 1 : kPieces;
  const Place place = place_of<Traits>(p);
#pragma unroll kUnroll
  for (int piece = 0; piece < kPieces; ++piece) {
    const int c0 = piece * kCols;
    if (c0 >= place.cols) break;
    Sum* const mine = patch + lane % 4 * 2 * kStride + lane / 4;
    tile::with_constant<0, kPieces>(piece, [&](auto which) {
#pragma unroll
      for (int j = 0; j < kCols / 8; ++j) {
        const Sum* const from = acc[0] + decltype(which)::value * kCols / 2 + 4 * j;
        Sum* const at = mine + 8 * j * kStride;
        at[0] = from[0];
        at[kStride] = from[1];
        at[8] = from[2];
        at[kStride + 8] = from[3];
      }
    });
    __syncwarp();
    if constexpr (kStores == Stores::kUnaligned) {
      finish_unaligned<Traits>(p, patch, row0, rows, place.first + c0, place.cols - c0, offset);
    } else if (row < rows && col < kCols && c0 + col < place.cols) {
      const Sum* const from = patch + col * kStride + row;
      Sum v[8];
#pragma unroll
      for (int i = 0; i < 8; ++i) v[i] = from[swapped ? i * kStride : i];
      if constexpr (std::is_same_v<Sum, int32_t>) {
        store_int8(p, v, swapped ? row0 + row : c0 + col, swapped ? c0 + col : row0 + row);
      } else if constexpr (Traits::kGated) {
        finish_gated<typename Traits::T>(p, v, c0 + col, row0 + row);
      } else {
        const int at_x = place.first + c0 + col;
        const int of_d = swapped ? row0 + row : at_x, first = swapped ? at_x : row0 + row;
        if constexpr (kStores == Stores::kCommon) {
          tile::finish_common<typename Traits::T>(p.epilogue, offset, of_d, first, v);
        } else {  // one call for both directions
          const int left = swapped ? place.cols - c0 - col : rows - row;
          tile::finish<typename Traits::T>(p.epilogue, offset, of_d, first, {0, min(left, 8)}, true, v);
        }
      }
    }
    __syncwarp();
  }
}

/// Finishes and stores a warp's sums, of which `rows` rows of W from `row0` on exist.
template <class Traits>
__device__ __forceinline__ void finish_warp(const Params& p,
                                            const typename Traits::Sum (&acc)[Traits::PARTS][Traits::kWarpCols / 2],
                                            typename Traits::Sum* patch, int row0, int rows, tile::BatchOffset offset) {
  if constexpr (Traits::kTransposes) {
    finish_parts<Traits>(p, acc, patch, row0, rows);
  } else {
    if constexpr (std::is_same_v<typename Traits::Sum, float> && !Traits::kGated) {
      if (tile::is_common(p.epilogue)) {
        return finish_pieces<Traits, Stores::kCommon>(p, acc, patch, row0, rows, offset);
      }
      if (!p.epilogue.wide_d && is_plain(p.epilogue)) {
        return finish_pieces<Traits, Stores::kUnaligned>(p, acc, patch, row0, rows, offset);
      }
    }
    finish_pieces<Traits, Stores::kAny>(p, acc, patch, row0, rows, offset);
  }
}

/// Four sums, 16 bytes.
template <class Sum>
using Four = std::conditional_t<std::is_same_v<Sum, float>, float4, int4>;

/// Reduces a warp's sums over the slices of K. In block `owner` of the cluster it adds up the sums that the other
/// blocks send, and the block's own, in the order of the slices, and returns true. In the other blocks it sends their
/// sums to the owner and returns false. `sums`: shared memory for (splits - 1, PARTS, COLS / 8, 32 lanes, 4) sums,
/// whose bytes complete on `bar`.
template <class Traits>
__device__ __forceinline__ bool add_slices(const Params& p,
                                           typename Traits::Sum (&acc)[Traits::PARTS][Traits::kWarpCols / 2], int owner,
                                           const typename Traits::Sum* sums, uint32_t bar) {
  using Sum = typename Traits::Sum;
  const int slice = blockIdx.y, lane = threadIdx.x % 32;
  constexpr int kGroups = Traits::kWarpCols / 8, kQuads = Traits::PARTS * kGroups;
  const int all = place_of<Traits>(p).cols;
  const int cols = Traits::kColGroups == 1 ? all : min(max(all - first_col<Traits>(), 0), Traits::kWarpCols);
  const int groups = (cols + 7) / 8;  // of eight rows of x; groups beyond x are not sent
  if (slice != owner) {
    const int mine = slice - (slice > owner);
    const uint32_t to = ptx::cluster_map(ptx::smem_addr(sums) + mine * Traits::kSumBytes + lane * 16, owner);
    const uint32_t done = ptx::cluster_map(bar, owner);
#pragma unroll
    for (int i = 0; i < kQuads; ++i) {
      const Sum* const v = acc[i / kGroups] + 4 * (i % kGroups);
      if (i % kGroups < groups) ptx::cluster_store_async_16(to + i * 512, v[0], v[1], v[2], v[3], done);
    }
    return false;
  }
  if (lane == 0) ptx::mbarrier_arrive_expect_tx(bar, (p.splits - 1) * Traits::PARTS * groups * 512);
  ptx::mbarrier_wait(bar, 0);
#pragma unroll
  for (int i = 0; i < kQuads; ++i) {
    if (i % kGroups >= groups) {
      if (Traits::PARTS == 1) break;
      continue;
    }
    Sum* const own = acc[i / kGroups] + 4 * (i % kGroups);
    constexpr Sum kZero = std::is_same_v<Sum, float> ? -0.0f : 0;  // -0 keeps the sign of a zero
    Four<Sum> sum = {kZero, kZero, kZero, kZero};
    for (int s = 0; s < p.splits; ++s) {
      Four<Sum> v = {own[0], own[1], own[2], own[3]};
      if (s != owner) {
        v = reinterpret_cast<const Four<Sum>*>(sums)[((s - (s > owner)) * kQuads + i) * 32 + lane];
      }
      sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w;
    }
    own[0] = sum.x, own[1] = sum.y, own[2] = sum.z, own[3] = sum.w;
  }
  return true;
}

}  // namespace hgemm::sm90_skinny
