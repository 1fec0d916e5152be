// Batches of products of at most 32 rows, columns and k: any layout, on CUDA cores of any architecture. numbers.cuh has
// the arithmetic of the element types.
//
// Memory decides, so a block takes a chunk of consecutive matrices: it copies those of A and of B into shared memory
// by cp.async, all at once, a thread computes a tile of one product from there, and D goes back through shared memory.
// Packed batches are copied as flat memory, 16 bytes at a time whatever the sizes are; other ones run by run. Many
// blocks on an SM hide each other's waits. Where matrices lie in shared memory is the host's choice (config.h): what
// neighbouring threads read falls into different banks.
//
// Every result is one chain of fma in K's order, from 0 on: it depends on its row of A and its column of B alone.
#pragma once

#include <cstdint>

#include "core/convert.cuh"
#include "core/fast_divisor.h"
#include "core/problem.h"
#include "kernels/tiny_batch/config.h"
#include "kernels/tiny_batch/numbers.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/dependent_launch.cuh"
#include "ptx/global.cuh"
#include "ptx/smem_addr.cuh"
#include "tile/epilogue.cuh"

namespace hgemm::tiny_batch {

/// What the kernel is compiled for.
template <class Config, class T_>
struct Traits : Config {
  using T = T_;
  using Numbers = tiny_batch::Numbers<T>;
  using Value = typename Numbers::Value;
  using Sum = typename Numbers::Sum;
  static constexpr int kStep = sizeof(T) == 8 ? 2 : Config::K_STEP;
  static constexpr int kBlocks = sizeof(T) == 8 ? Config::BLOCKS_OF_8 : Config::BLOCKS;
};

/// The device's side of a Layout.
struct Place {
  Layout layout;
  FastDivisor run_pieces;  // copies that make a run
  FastDivisor runs;
};

struct Params {
  const void *a, *b;
  Place place_a, place_b, place_d;
  uint32_t batches;
  FastDivisor batch_inner;
  int m, n, k;
  int problems, units;     // products of a block, tiles of a block
  FastDivisor unit_inner;  // problems, or tiles of a problem
  FastDivisor tiles_n;
  FastDivisor cols, matrix;  // N, M * N
  int a_apart, b_apart, b_at, d_at;
  bool across_matrices, a_is_k_major, b_is_k_major;
  bool plain, linear;
  bool conjugates_a, conjugates_b;
  double alpha, beta;  // `epilogue` has them in float32
  tile::EpilogueParams epilogue;
};

/// Elements that one access takes where they are aligned.
template <class T, int kCount>
struct alignas(kCount * sizeof(T)) Elements {
  T x[kCount];
};
template <class T>
using Group = Elements<T, group_of(sizeof(T))>;

/// Elements before matrix `problem` of the batch.
__device__ __forceinline__ int64_t batch_offset(const Params& p, const int64_t (&stride)[2], uint32_t problem) {
  const uint32_t outer = p.batch_inner.quotient(problem);
  return outer * stride[0] + (problem - outer * p.batch_inner.divisor()) * stride[1];
}

/// One copy of kBytes between global and shared memory; loads may arrive as late as cp_async_wait_all().
template <int kBytes>
__device__ __forceinline__ void copy_in(unsigned char* to, const unsigned char* from) {
  if constexpr (kBytes == 2) {
    *reinterpret_cast<uint16_t*>(to) = ptx::ld_2(from);
  } else if constexpr (kBytes == 16) {
    ptx::cp_async_16(ptx::smem_addr(to), from, true);
  } else {
    ptx::cp_async<kBytes>(ptx::smem_addr(to), from, true);
  }
}
template <int kBytes>
struct Bytes;
template <>
struct Bytes<2> {
  using type = uint16_t;
};
template <>
struct Bytes<4> {
  using type = uint32_t;
};
template <>
struct Bytes<8> {
  using type = uint2;
};
template <>
struct Bytes<16> {
  using type = uint4;
};
/// kIn: from global to shared memory, otherwise back.
template <int kBytes, bool kIn>
__device__ __forceinline__ void copy(unsigned char* shared, unsigned char* global) {
  if constexpr (kIn) {
    copy_in<kBytes>(shared, global);
  } else {
    using V = typename Bytes<kBytes>::type;
    *reinterpret_cast<V*>(global) = *reinterpret_cast<const V*>(shared);
  }
}

/// How far from a multiple of 16 bytes a flat copy starts, in both memories.
template <int kElement>
__device__ __forceinline__ uint32_t phase_of(const Layout& l, const void* data, uint32_t first) {
  if (l.copy != Copy::kFlat) return 0;
  const uint32_t elements = first * static_cast<uint32_t>(l.matrix_pitch);  // modulo 2^32 is enough
  return (static_cast<uint32_t>(reinterpret_cast<uint64_t>(data)) + elements * kElement) % 16;
}

/// Copies `bytes`, which start `phase` bytes behind a multiple of 16: elements up to the next one and behind the last.
template <int kElement, bool kIn>
__device__ __forceinline__ void copy_flat(unsigned char* shared, unsigned char* global, uint32_t phase, int bytes) {
  const int head = min(static_cast<int>((16 - phase) % 16), bytes), body = (bytes - head) / 16 * 16;
  for (int i = threadIdx.x * 16; i < body; i += blockDim.x * 16) {
    copy<16, kIn>(shared + head + i, global + head + i);
  }
  const int tail = bytes - head - body;
  if (head + tail == 0) return;
  const int at = threadIdx.x * kElement;
  if (at < head) copy<kElement, kIn>(shared + at, global + at);
  if (at < tail) copy<kElement, kIn>(shared + head + body + at, global + head + body + at);
}

/// Copies the runs of `count` matrices, kBytes at a time.
template <int kBytes, int kElement, bool kIn>
__device__ __forceinline__ void copy_runs(const Params& p, const Place& place, unsigned char* shared,
                                          unsigned char* global, uint32_t first, int count) {
  const Layout& l = place.layout;
  const uint32_t pieces = place.run_pieces.divisor(), total = count * l.runs * pieces;
  if (l.copy == Copy::kPadded) {
    const uint32_t pad = (l.runs == 1 ? l.matrix_pitch - l.matrix : l.row_pitch - l.run) * kElement;
    global += static_cast<int64_t>(l.shared ? 0 : first) * l.matrix * kElement;
#pragma unroll 4
    for (uint32_t i = threadIdx.x; i < total; i += blockDim.x) {
      copy<kBytes, kIn>(shared + i * kBytes + place.run_pieces.quotient(i) * pad, global + i * kBytes);
    }
    return;
  }
  if (l.is_near) global += first * l.batch[1] * kElement;
#pragma unroll 1
  for (uint32_t i = threadIdx.x; i < total; i += blockDim.x) {
    const uint32_t run = place.run_pieces.quotient(i), piece = i - run * pieces;
    const uint32_t matrix = place.runs.quotient(run), row = run - matrix * l.runs;
    unsigned char* const to = shared + (matrix * l.matrix_pitch + row * l.row_pitch) * kElement + piece * kBytes;
    if (l.is_near) {
      const uint32_t at = matrix * static_cast<uint32_t>(l.batch[1]) + row * static_cast<uint32_t>(l.ld);
      copy<kBytes, kIn>(to, global + at * kElement + piece * kBytes);
    } else {
      const int64_t at = batch_offset(p, l.batch, first + matrix) + row * l.ld;
      copy<kBytes, kIn>(to, global + at * kElement + piece * kBytes);
    }
  }
}

/// Starts copying matrices first..first+count-1 to `shared`, or from there.
template <int kElement, bool kIn>
__device__ __forceinline__ void copy_matrices(const Params& p, const Place& place, unsigned char* shared,
                                              unsigned char* global, uint32_t first, int count) {
  const Layout& l = place.layout;
  if (l.shared) count = 1;
  if (l.copy == Copy::kFlat) {
    const uint32_t phase = phase_of<kElement>(l, global, first);
    const int64_t before = static_cast<int64_t>(first) * l.matrix_pitch * kElement;
    copy_flat<kElement, kIn>(shared + phase, global + before, phase, count * l.run * kElement);
  } else if (l.piece == 16) {
    copy_runs<16, kElement, kIn>(p, place, shared, global, first, count);
  } else if (kElement == 2 && l.piece == 2) {
    copy_runs<2, kElement, kIn>(p, place, shared, global, first, count);
  } else {
    copy_runs<kElement == 8 ? 8 : 4, kElement, kIn>(p, place, shared, global, first, count);
  }
}

/// A thread's rows of A, or columns of B: what it reads of them from shared memory, kStep k at a time. kWide: groups of
/// elements are aligned.
template <class Traits, int kCount, bool kKMajor, bool kWide>
class Operand {
  using T = typename Traits::T;
  using Numbers = typename Traits::Numbers;
  using Value = typename Traits::Value;
  static constexpr int kStep = Traits::kStep;
  static constexpr int kPointers = kKMajor ? kCount : 1;

 public:
  /// `begin`: of the tile's rows, which are `apart` from each other, of `extent`. Rows beyond the last one are the last
  /// one again, or what lies behind it: nobody reads their sums.
  __device__ __forceinline__ Operand(const T* matrix, int pitch, int begin, int apart, int extent, bool conjugates)
      : pitch_(pitch), conjugates_(conjugates) {
#pragma unroll
    for (int i = 0; i < kPointers; ++i) {
      at_[i] = matrix + (kKMajor ? min(begin + i * apart, extent - 1) * pitch : begin);
    }
  }

  /// The next kStep k of all rows.
  __device__ __forceinline__ void load(Value (&x)[kCount][kStep]) {
    constexpr int kGroup = kWide ? kKMajor ? kStep : group_of(sizeof(T)) : 1;
    if constexpr (kKMajor) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
#pragma unroll
        for (int q = 0; q < kStep; q += kGroup) {
          const auto g = *reinterpret_cast<const Elements<T, kGroup>*>(at_[i] + q);
#pragma unroll
          for (int j = 0; j < kGroup; ++j) x[i][q + j] = Numbers::value(g.x[j], conjugates_);
        }
        at_[i] += kStep;
      }
    } else {
#pragma unroll
      for (int q = 0; q < kStep; ++q) {
#pragma unroll
        for (int i = 0; i < kCount; i += kGroup) {
          const auto g = *reinterpret_cast<const Elements<T, kGroup>*>(at_[0] + i);
#pragma unroll
          for (int j = 0; j < kGroup; ++j) x[i + j][q] = Numbers::value(g.x[j], conjugates_);
        }
        at_[0] += pitch_;
      }
    }
  }
  /// The next k of all rows.
  __device__ __forceinline__ void load(Value (&x)[kCount]) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) x[i] = Numbers::value(kKMajor ? *at_[i % kPointers] : at_[0][i], conjugates_);
#pragma unroll
    for (int i = 0; i < kPointers; ++i) at_[i] += kKMajor ? 1 : pitch_;
  }

 private:
  int pitch_;
  bool conjugates_;
  const T* at_[kPointers];
};

/// A tile of one product.
template <class Traits>
struct Tile {
  static constexpr int TM = Traits::TM, TN = Traits::TN, kStep = Traits::kStep;
  using T = typename Traits::T;
  using Numbers = typename Traits::Numbers;
  using Value = typename Traits::Value;

  typename Traits::Sum sums[TM][TN] = {};
  int row, col;  // of the tile's first result

  template <bool kAIsKMajor, bool kAIsWide, bool kBIsKMajor, bool kBIsWide>
  __device__ __forceinline__ void run(const Params& p, const T* a, const T* b) {
    Operand<Traits, TM, kAIsKMajor, kAIsWide> rows(a, p.place_a.layout.row_pitch, row, p.a_apart, p.m, p.conjugates_a);
    Operand<Traits, TN, kBIsKMajor, kBIsWide> cols(b, p.place_b.layout.row_pitch, col, p.b_apart, p.n, p.conjugates_b);
    int left = p.k;
#pragma unroll 1
    for (; left >= kStep; left -= kStep) {
      Value x[TM][kStep], y[TN][kStep];
      rows.load(x);
      cols.load(y);
#pragma unroll
      for (int q = 0; q < kStep; ++q) {
#pragma unroll
        for (int i = 0; i < TM; ++i) {
#pragma unroll
          for (int j = 0; j < TN; ++j) Numbers::add(sums[i][j], x[i][q], y[j][q]);
        }
      }
    }
#pragma unroll 1
    for (; left > 0; --left) {
      Value x[TM], y[TN];
      rows.load(x);
      cols.load(y);
#pragma unroll
      for (int i = 0; i < TM; ++i) {
#pragma unroll
        for (int j = 0; j < TN; ++j) Numbers::add(sums[i][j], x[i], y[j]);
      }
    }
  }
  template <bool kAIsKMajor, bool kAIsWide>
  __device__ __forceinline__ void run(const Params& p, const T* a, const T* b) {
    if (p.b_is_k_major) {
      p.place_b.layout.wide ? run<kAIsKMajor, kAIsWide, true, true>(p, a, b)
                            : run<kAIsKMajor, kAIsWide, true, false>(p, a, b);
    } else {
      p.place_b.layout.wide ? run<kAIsKMajor, kAIsWide, false, true>(p, a, b)
                            : run<kAIsKMajor, kAIsWide, false, false>(p, a, b);
    }
  }
  /// The loop over k is compiled for every layout of both operands: a switch inside of it would double its
  /// instructions.
  __device__ __forceinline__ void multiply(const Params& p, const T* a, const T* b, uint32_t tile) {
    const int tile_m = p.tiles_n.quotient(tile), tile_n = tile - tile_m * p.tiles_n.divisor();
    row = p.a_is_k_major ? tile_m : tile_m * TM;
    col = p.b_is_k_major ? tile_n : tile_n * TN;
    if (p.a_is_k_major) {
      p.place_a.layout.wide ? run<true, true>(p, a, b) : run<true, false>(p, a, b);
    } else {
      p.place_a.layout.wide ? run<false, true>(p, a, b) : run<false, false>(p, a, b);
    }
  }

  /// Puts scale * sums into the matrix at `to`.
  template <class Out>
  __device__ __forceinline__ void store(const Params& p, Out* to, typename Numbers::Real scale) const {
    constexpr int kGroup = group_of(sizeof(Out));
    const int pitch = p.place_d.layout.row_pitch;
#pragma unroll
    for (int i = 0; i < TM; ++i) {
      const int m = row + i * p.a_apart;
      if (m >= p.m) break;
      Out* const at = to + m * pitch + col;
      if (p.place_d.layout.wide) {
#pragma unroll
        for (int j = 0; j < TN; j += kGroup) {
          if (j > 0 && col + j >= p.n) break;
          Group<Out> g;
#pragma unroll
          for (int q = 0; q < kGroup; ++q) g.x[q] = Numbers::template result<Out>(sums[i][j + q], scale);
          *reinterpret_cast<Group<Out>*>(at + j) = g;
        }
      } else {
#pragma unroll
        for (int j = 0; j < TN; ++j) {
          if (col + j * p.b_apart < p.n) at[j * p.b_apart] = Numbers::template result<Out>(sums[i][j], scale);
        }
      }
    }
  }
};

/// A whole product of TM rows, columns and k, which registers hold.
template <class Traits>
struct Whole {
  static constexpr int S = Traits::TM;
  using T = typename Traits::T;
  using Numbers = typename Traits::Numbers;
  using Value = typename Traits::Value;

  typename Traits::Sum sums[S * S] = {};

  static __device__ __forceinline__ void load(Value (&x)[S * S], const T* from, bool conjugates) {
    constexpr int kGroup = S * S % group_of(sizeof(T)) == 0 ? group_of(sizeof(T)) : 1;
#pragma unroll
    for (int i = 0; i < S * S; i += kGroup) {
      const auto g = *reinterpret_cast<const Elements<T, kGroup>*>(from + i);
#pragma unroll
      for (int j = 0; j < kGroup; ++j) x[i + j] = Numbers::value(g.x[j], conjugates);
    }
  }
  template <bool kTransA, bool kTransB>
  __device__ __forceinline__ void add(const Value (&x)[S * S], const Value (&y)[S * S]) {
#pragma unroll
    for (int k = 0; k < S; ++k) {
#pragma unroll
      for (int i = 0; i < S; ++i) {
#pragma unroll
        for (int j = 0; j < S; ++j) {
          Numbers::add(sums[i * S + j], x[kTransA ? k * S + i : i * S + k], y[kTransB ? j * S + k : k * S + j]);
        }
      }
    }
  }

  __device__ __forceinline__ void multiply(const Params& p, const T* a, const T* b, uint32_t) {
    Value x[S * S], y[S * S];
    load(x, a, p.conjugates_a);
    load(y, b, p.conjugates_b);
    if (p.a_is_k_major) {
      if (p.b_is_k_major) {
        add<false, true>(x, y);
      } else {
        add<false, false>(x, y);
      }
    } else if (p.b_is_k_major) {
      add<true, true>(x, y);
    } else {
      add<true, false>(x, y);
    }
  }

  template <class Out>
  __device__ __forceinline__ void store(const Params& p, Out* to, typename Numbers::Real scale) const {
    constexpr int kGroup = group_of(sizeof(Out));
    if (S * S % kGroup == 0 && p.place_d.layout.wide) {
#pragma unroll
      for (int i = 0; i + kGroup <= S * S; i += kGroup) {
        Group<Out> g;
#pragma unroll
        for (int q = 0; q < kGroup; ++q) g.x[q] = Numbers::template result<Out>(sums[i + q], scale);
        *reinterpret_cast<Group<Out>*>(to + i) = g;
      }
    } else {
#pragma unroll
      for (int i = 0; i < S * S; ++i) to[i] = Numbers::template result<Out>(sums[i], scale);
    }
  }
};

/// What a thread does of one product.
template <class Traits, class Out>
__device__ __forceinline__ void multiply_one(const Params& p, const typename Traits::T* a, const typename Traits::T* b,
                                             Out* d, uint32_t part, typename Traits::Numbers::Real scale) {
  if constexpr (Traits::WHOLE) {
    Whole<Traits> whole;
    whole.multiply(p, a, b, part);
    whole.store(p, d, scale);
  } else {
    Tile<Traits> tile;
    tile.multiply(p, a, b, part);
    tile.store(p, d, scale);
  }
}

/// Computes the block's products from shared memory to shared memory, each times `scale`.
template <class Traits, class Out>
__device__ __forceinline__ void multiply(const Params& p, const typename Traits::T* a, const typename Traits::T* b,
                                         Out* d, int count, typename Traits::Numbers::Real scale) {
#pragma unroll 1
  for (uint32_t unit = threadIdx.x; unit < p.units; unit += blockDim.x) {
    const uint32_t outer = p.unit_inner.quotient(unit), inner = unit - outer * p.unit_inner.divisor();
    const int problem = p.across_matrices ? inner : outer;
    if (problem >= count) continue;
    multiply_one<Traits>(p, a + problem * p.place_a.layout.matrix_pitch, b + problem * p.place_b.layout.matrix_pitch,
                         d + problem * p.place_d.layout.matrix_pitch, p.across_matrices ? outer : inner, scale);
  }
}

/// Element `at` of C.
template <class T>
__device__ __forceinline__ typename Numbers<T>::Value addend(const tile::EpilogueParams& e, int64_t at) {
  if constexpr (sizeof(T) == 2) {
    if (e.c_f32) return static_cast<const float*>(e.c)[at];
  }
  return Numbers<T>::value(static_cast<const T*>(e.c)[at], false);
}

/// From sums in shared memory to D, one result a thread at a time.
template <class T>
__device__ __forceinline__ void finish(const Params& p, const typename Numbers<T>::Value* sums, uint32_t first,
                                       int count) {
  using Math = Numbers<T>;
  const tile::EpilogueParams& e = p.epilogue;
  const uint32_t results = p.matrix.divisor(), total = count * results;
  const T* const bias = static_cast<const T*>(e.bias);
  const auto alpha = static_cast<typename Math::Real>(p.alpha), beta = static_cast<typename Math::Real>(p.beta);
  if (p.linear) {
    const int64_t before = static_cast<int64_t>(first) * results;
    const uint32_t pad = p.place_d.layout.matrix_pitch - results;
#pragma unroll 4
    for (uint32_t i = threadIdx.x; i < total; i += blockDim.x) {
      auto v = Math::times(alpha, sums[i + p.matrix.quotient(i) * pad]);
      if (e.c != nullptr) v = Math::plus(beta, addend<T>(e, before + i), v);
      if (bias != nullptr) {
        v = Math::plus(1, Math::value(bias[i - p.cols.quotient(i) * p.cols.divisor()], false), v);
      }
      if constexpr (sizeof(T) == 8) {
        static_cast<T*>(e.d)[before + i] = v;
      } else if (e.out_f32) {
        static_cast<float*>(e.d)[before + i] = v;
      } else {
        static_cast<T*>(e.d)[before + i] = from_float<T>(v);
      }
    }
    return;
  }
  for (uint32_t i = threadIdx.x; i < total; i += blockDim.x) {
    const uint32_t matrix = p.matrix.quotient(i), at = i - matrix * results;
    const uint32_t row = p.cols.quotient(at), col = at - row * p.cols.divisor();
    const tile::BatchOffset offset{batch_offset(p, e.d_batch, first + matrix),
                                   batch_offset(p, e.c_batch, first + matrix)};
    const auto sum = sums[matrix * p.place_d.layout.matrix_pitch + at];
    if constexpr (sizeof(T) == 8) {
      auto v = Math::times(alpha, sum);
      if (e.c != nullptr) v = Math::plus(beta, addend<T>(e, offset.c + row * e.c_row + col * e.c_col), v);
      if (bias != nullptr) v = Math::plus(1, Math::value(bias[col], false), v);
      static_cast<T*>(e.d)[offset.d + row * e.ldd + col] = v;
    } else {
      float v[8] = {sum};
      tile::finish<T>(e, offset, row, col, {0, 1}, true, v);
    }
  }
}

template <class Traits>
__global__ void __launch_bounds__(kMostThreads, Traits::kBlocks) kernel(const __grid_constant__ Params p) {
  using T = typename Traits::T;
  using Value = typename Traits::Value;
  using Real = typename Traits::Numbers::Real;
  constexpr int kElement = sizeof(T), kSum = sizeof(Value);
  extern __shared__ __align__(128) unsigned char smem[];  // A, B, D of `problems` matrices
  const uint32_t first = blockIdx.x * p.problems;
  const int count = min(p.problems, static_cast<int>(p.batches - first));
  auto* const from_a = static_cast<unsigned char*>(const_cast<void*>(p.a));
  auto* const from_b = static_cast<unsigned char*>(const_cast<void*>(p.b));

  ptx::grid_dependency_wait();
  ptx::grid_launch_dependents();
  copy_matrices<kElement, true>(p, p.place_a, smem, from_a, first, count);
  copy_matrices<kElement, true>(p, p.place_b, smem + p.b_at, from_b, first, count);
  ptx::cp_async_wait_all();
  __syncthreads();

  const auto* const a = reinterpret_cast<const T*>(smem + phase_of<kElement>(p.place_a.layout, p.a, first));
  const auto* const b = reinterpret_cast<const T*>(smem + p.b_at + phase_of<kElement>(p.place_b.layout, p.b, first));
  unsigned char* const d = smem + p.d_at;
  auto* const to = static_cast<unsigned char*>(p.epilogue.d);
  if constexpr (kElement < kSum) {
    if (p.plain && !p.epilogue.out_f32) {
      const uint32_t phase = phase_of<kElement>(p.place_d.layout, to, first);
      multiply<Traits>(p, a, b, reinterpret_cast<T*>(d + phase), count, static_cast<Real>(p.alpha));
      __syncthreads();
      copy_matrices<kElement, false>(p, p.place_d, d, to, first, count);
      return;
    }
  }
  const uint32_t phase = p.plain ? phase_of<kSum>(p.place_d.layout, to, first) : 0;
  multiply<Traits>(p, a, b, reinterpret_cast<Value*>(d + phase), count, p.plain ? static_cast<Real>(p.alpha) : Real{1});
  __syncthreads();
  if (p.plain) {
    copy_matrices<kSum, false>(p, p.place_d, d, to, first, count);
  } else {
    finish<T>(p, reinterpret_cast<const Value*>(d), first, count);
  }
}

}  // namespace hgemm::tiny_batch
