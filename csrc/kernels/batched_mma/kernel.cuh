// Batched GEMM whose matrices D fit in one tile each: mma.sync m16n8k16, in any alignment, on sm_80 and newer.
//
// A problem is one matrix of the batch. A warp (in some Configs, all warps of a block) computes one problem after
// another with a pipeline of STAGES k-tiles in shared memory, which cp.async fills. The last k-tile of a problem is
// followed by the first one of the next, so that neither a short K nor an epilogue leaves the memory idle. Rows and
// columns beyond M and N are not loaded, and their results are not stored. Only K is padded with zeros.
//
// Unaligned operands are copied as the 32-bit words that cover their rows. Each row keeps its offset from a word
// boundary, and fragments are assembled from single elements. That takes several times the instructions, but no copy to
// another layout beforehand.
//
// whole_kernel.cuh has another form for unaligned matrices without gaps between their rows.
#pragma once

#include "core/convert.cuh"
#include "core/problem.h"
#include "kernels/batched_mma/config.h"
#include "ptx/cp_async.cuh"
#include "ptx/dependent_launch.cuh"
#include "ptx/global.cuh"
#include "ptx/mma.cuh"
#include "ptx/shared.cuh"
#include "ptx/smem_addr.cuh"
#include "tile/epilogue.cuh"
#include "tile/smem_operand.cuh"
#include "tile/unaligned.cuh"
#include "tile/with_constant.cuh"

namespace hgemm::batched_mma {

/// The compile-time parameters of the kernel: Config, element type, memory orders of A and B, alignment.
template <class Config_, class T_, Major kMajorA_, Major kMajorB_, bool kNarrow_>
struct Traits : Config_ {
  using T = T_;
  static constexpr Major kMajorA = kMajorA_, kMajorB = kMajorB_;
  static constexpr bool kNarrow = kNarrow_;            // the operands are not is_wide()
  static constexpr int kGroup = 32 * Config_::kWarps;  // threads that share a problem
  static constexpr int kBytesA = Config_::step_bytes(Config_::BM, kMajorA, kNarrow);
  static constexpr int kStageBytes = kBytesA + Config_::step_bytes(Config_::BN, kMajorB, kNarrow);
  static constexpr int kSmemBytes = Config_::smem_bytes(kMajorA, kMajorB, kNarrow);
};

/// The run-time parameters. Strides count elements.
struct Params {
  const void *a, *b;
  int64_t lda, ldb;
  int64_t a_batch[2], b_batch[2];  // batch strides, outer and inner
  uint32_t a_last, b_last;         // the lower 32 bits of the address of the operand's last element
  uint32_t batches, batch_inner;   // matrices in the batch; extent of the inner batch dimension
  int m, n, k;
  bool plain;   // D is A @ B in T, without any epilogue
  bool wide_d;  // D consists of whole aligned 16-byte chunks
  tile::EpilogueParams epilogue;
};

/// Iterates over the batch, by the number of problems that the grid works on at a time.
class Cursor {
 public:
  __device__ __forceinline__ Cursor(uint32_t batches, uint32_t batch_inner, uint32_t first, uint32_t step)
      : batches_(batches), batch_inner_(batch_inner), problem_(first), step_(step) {
    outer_ = first / batch_inner_;
    inner_ = first - outer_ * batch_inner_;
    outer_step_ = step / batch_inner_;
    inner_step_ = step - outer_step_ * batch_inner_;
  }
  __device__ __forceinline__ bool inside() const { return problem_ < batches_; }
  __device__ __forceinline__ void advance() {
    problem_ += step_;
    outer_ += outer_step_;
    inner_ += inner_step_;
    if (inner_ >= batch_inner_) {
      inner_ -= batch_inner_;
      ++outer_;
    }
  }
  /// Elements from the operand's first matrix to that of this problem, for its batch strides.
  __device__ __forceinline__ int64_t offset(const int64_t (&stride)[2]) const {
    return outer_ * stride[0] + inner_ * stride[1];
  }

 private:
  uint32_t batches_, batch_inner_, problem_, step_;
  uint32_t outer_, inner_, outer_step_, inner_step_;
};

__device__ __forceinline__ int round_up_16(int k) {
  return (k + 15) / 16 * 16;
}

/// One operand: copies its k-tiles to shared memory, and loads the fragments of a warp from there. `origin` is the
/// first row of A, or column of B, of the warp's part of D. THREADS threads share a problem.
///
/// kIsA: a fragment of A for mma.sync, which consists of the 8x8 matrices at (outer 0, k 0), (outer 8, k 0),
/// (outer 0, k 8), (outer 8, k 8). Otherwise two fragments of B, with (outer 0, k 0), (outer 0, k 8), (outer 8, k 0),
/// (outer 8, k 8). The outer index is m of A, or n of B.
template <int EXTENT, int BK, Major kMajor, int THREADS, bool kIsA, bool kNarrow>
class Operand;

/// Wide operands: 16-byte cp.async into swizzled shared memory, and ldmatrix.
template <int EXTENT, int BK, Major kMajor, int THREADS, bool kIsA>
class Operand<EXTENT, BK, kMajor, THREADS, kIsA, false> {
  using Tile = tile::SmemOperand<EXTENT, BK, kMajor>;
  static constexpr int kChunks = Tile::kCols / 8, kRowsPerPass = THREADS / kChunks;
  static_assert(THREADS % kChunks == 0 && Tile::kRows % kRowsPerPass == 0);

 public:
  __device__ __forceinline__ Operand(int extent, int k, int64_t ld, uint32_t /* last */, int origin)
      : extent_(extent), k_(k), ld_(ld) {
    const int thread = threadIdx.x % THREADS, lane = threadIdx.x % 32;
    row_ = thread / kChunks;
    col_ = thread % kChunks * 8;
    const int half = lane / 8 % 2, other = lane / 16;
    lane_ = kIsA ? Tile::lane_offset(origin, half, other) : Tile::lane_offset(origin, other, half);
  }

  /// Starts copying k0..k0+BK-1 of the matrix at `from` to the k-tile at `to`.
  __device__ __forceinline__ void fetch(unsigned char* to, const uint16_t* from, int k0) const {
    const int left = k_ - k0;
    const uint32_t dst = ptx::smem_addr(to);
    const int64_t step = kRowsPerPass * ld_;
    const uint16_t* at = from + row_ * ld_ + col_ + (Tile::kIsKMajor ? k0 : k0 * ld_);
#pragma unroll
    for (int i = 0; i < Tile::kRows / kRowsPerPass; ++i) {
      const int row = row_ + i * kRowsPerPass;
      const int k = Tile::kIsKMajor ? col_ : row;
      if ((Tile::kIsKMajor ? row : col_) < extent_ && k < round_up_16(left)) {
        ptx::cp_async_16(dst + Tile::Layout::offset(row, col_ / 8), at + i * step, k < left);
      }
    }
  }

  /// Called before the fragments of the matrix at `from` are loaded.
  __device__ __forceinline__ void begin(const uint16_t*) {}

  /// Loads the fragments of block i of 16 along the outer index, and k16 step s.
  __device__ __forceinline__ void load(uint32_t (&r)[4], const unsigned char* stage, int i, int s) const {
    Tile::load(r, ptx::smem_addr(stage) + Tile::at(lane_, i, s));
  }

 private:
  int extent_, k_;
  int64_t ld_;
  int row_, col_;
  uint32_t lane_;
};

/// Unaligned operands: 32-bit cp.async into padded rows, and fragments assembled from single elements. The functions
/// are those of the wide case.
template <int EXTENT, int BK, Major kMajor, int THREADS, bool kIsA>
class Operand<EXTENT, BK, kMajor, THREADS, kIsA, true> {
  static constexpr bool kIsKMajor = kMajor == Major::kK;
  // Row pitch in elements. The padding avoids bank conflicts between the words of a fragment.
  static constexpr int kRow = (kIsKMajor ? BK : EXTENT) + 8;

 public:
  __device__ __forceinline__ Operand(int extent, int k, int64_t ld, uint32_t last, int origin)
      : extent_(extent), k_(k), ld_(ld), last_(last) {
    const int thread = threadIdx.x % THREADS, lane = threadIdx.x % 32;
    words_ = (kIsKMajor ? min(round_up_16(k), BK) : extent) / 2 + 1;
    row_ = thread / words_;
    word_ = thread - row_ * words_;
    row_step_ = THREADS / words_;
    word_step_ = THREADS - row_step_ * words_;
    outer_ = origin + lane / 4;
    k_in_step_ = lane % 4 * 2;
  }

  __device__ __forceinline__ void fetch(unsigned char* to, const uint16_t* from, int k0) const {
    const int left = k_ - k0;
    if (left <= 0) return;
    const uint32_t dst = ptx::smem_addr(to);
    const int rows = kIsKMajor ? extent_ : min(round_up_16(left), BK);
    const uint16_t* const corner = from + (kIsKMajor ? k0 : k0 * ld_);
#pragma unroll 4
    for (int row = row_, word = word_; row < rows;) {
      const uint64_t at = reinterpret_cast<uint64_t>(corner + row * ld_);
      // The word holds element `element` of the row and the next one. The element before the row's first may be read,
      // since allocations start on whole words. The element after its last may be outside the allocation.
      const int element = 2 * word - tile::word_skew(at);
      const int valid = kIsKMajor ? left : row < left ? extent_ : -1;
      const uint32_t bytes = element + 1 < valid ? 4 : element < valid ? 2 : 0;
      const uint32_t to_word = dst + row * kRow * 2 + word * 4;
      const uint64_t from_word = at / 4 * 4 + word * 4;
      // compute-sanitizer treats a cp.async of half a word as a read of the whole word. The other half belongs to the
      // operand too, to another row, matrix or gap, except in the word of the operand's last element. That one is
      // loaded without cp.async. (So are, needlessly, words whose addresses have the same lower 32 bits.)
      if (bytes == 4 || (bytes == 2 && static_cast<uint32_t>(from_word) != last_)) {
        ptx::cp_async_part_4(to_word, from_word, bytes);
      } else {
        ptx::st_shared_4(to_word, bytes == 0 ? 0 : ptx::ld_2(reinterpret_cast<const uint16_t*>(from_word)));
      }
      row += row_step_;
      word += word_step_;
      if (word >= words_) {
        word -= words_;
        ++row;
      }
    }
  }

  __device__ __forceinline__ void begin(const uint16_t* from) {
    // The offset from a word boundary is the same eight rows further, and one k-tile further, since 8 and BK are even.
    const int row = kIsKMajor ? outer_ : k_in_step_;
    const int skew = tile::word_skew(reinterpret_cast<uint64_t>(from + row * ld_));
    const int next = tile::word_skew(reinterpret_cast<uint64_t>(from + (row + 1) * ld_));
    first_ = (kIsKMajor ? outer_ * kRow + k_in_step_ : k_in_step_ * kRow + outer_) + skew;
    second_ = kIsKMajor ? first_ + 1 : first_ - skew + kRow + next;
  }

  __device__ __forceinline__ void load(uint32_t (&r)[4], const unsigned char* stage, int i, int s) const {
    const auto* const elements = reinterpret_cast<const uint16_t*>(stage);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int outer = 16 * i + 8 * (kIsA ? j % 2 : j / 2), k = 16 * s + 8 * (kIsA ? j / 2 : j % 2);
      const int offset = kIsKMajor ? outer * kRow + k : k * kRow + outer;
      r[j] = elements[first_ + offset] | static_cast<uint32_t>(elements[second_ + offset]) << 16;
    }
  }

 private:
  int extent_, k_;
  int64_t ld_;
  uint32_t last_;
  // Words of a row; the row and index of this thread's first word; rows and words from one of its words to the next.
  int words_, row_, word_, row_step_, word_step_;
  int outer_, k_in_step_;  // this lane's first outer index and k in a fragment
  int first_, second_;     // where the two elements of the fragment's first pair are in the k-tile
};

/// A barrier for the threads that share a problem.
template <int WARPS>
__device__ __forceinline__ void group_sync() {
  if constexpr (WARPS == 1) {
    __syncwarp();
  } else {
    __syncthreads();
  }
}

/// Two elements, stored as one 32-bit word.
template <class T>
struct alignas(4) Pair {
  T x, y;
};

/// Stores a warp's (WM, WN) sums to D without an epilogue, by way of `scratch`, (WM, WN + 8) elements. Only `rows` x
/// `cols` of them are in D. `wide`: D consists of whole aligned 16-byte chunks. The general epilogue takes ten times
/// the instructions, which matters for problems this small.
template <class T, int WM, int WN>
__device__ __forceinline__ void store_product(T* d, int64_t ldd, int rows, int cols, bool wide,
                                              const float (&acc)[WM / 16][WN / 8][4], T* scratch) {
  constexpr int kRow = WN + 8;  // the padding avoids bank conflicts
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < WM / 16; ++i) {
#pragma unroll
    for (int j = 0; j < WN / 8; ++j) {
      const float (&v)[4] = acc[i][j];
      T* const to = scratch + (16 * i + lane / 4) * kRow + 8 * j + lane % 4 * 2;
      *reinterpret_cast<Pair<T>*>(to) = {from_float<T>(v[0]), from_float<T>(v[1])};
      *reinterpret_cast<Pair<T>*>(to + 8 * kRow) = {from_float<T>(v[2]), from_float<T>(v[3])};
    }
  }
  __syncwarp();
  if (wide) {
    constexpr int kLanesPerRow = WN / 8, kRowsPerPass = 32 / kLanesPerRow;
    const int row = lane / kLanesPerRow, col = lane % kLanesPerRow * 8;
    T* const to = d + row * ldd + col;
    const T* const from = scratch + row * kRow + col;
#pragma unroll
    for (int i = 0; i < WM; i += kRowsPerPass) {
      if (row + i < rows && col < cols) {
        *reinterpret_cast<Vec8<T>*>(to + i * ldd) = *reinterpret_cast<const Vec8<T>*>(from + i * kRow);
      }
    }
  } else {
    const int first = lane / WN, col = lane % WN;
    if (col < cols) {
#pragma unroll 4
      for (int row = first; row < min(rows, WM); row += 32 / WN) d[row * ldd + col] = scratch[row * kRow + col];
    }
  }
  __syncwarp();
}

template <class Traits>
__global__ void __launch_bounds__(Traits::kThreads, Traits::RESIDENT) kernel(const __grid_constant__ Params p) {
  using T = typename Traits::T;
  constexpr int BM = Traits::BM, BN = Traits::BN, BK = Traits::BK, WM = Traits::WM, WN = Traits::WN;
  constexpr int STAGES = Traits::STAGES, kWarps = Traits::kWarps, MI = WM / 16, NJ = WN / 16;
  extern __shared__ __align__(128) unsigned char smem[];  // PROBLEMS x { STAGES x { A, B } }, scratch of every warp
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int warp_m = warp % kWarps % Traits::kWarpsM * WM, warp_n = warp % kWarps / Traits::kWarpsM * WN;
  unsigned char* const ring = smem + warp / kWarps * STAGES * Traits::kStageBytes;
  float* const sums = reinterpret_cast<float*>(smem + Traits::PROBLEMS * STAGES * Traits::kStageBytes) +
                      warp * Traits::kSumRows * Traits::kSumRow;  // (kSumRows, WN + 8)

  Operand<BM, BK, Traits::kMajorA, Traits::kGroup, true, Traits::kNarrow> a(p.m, p.k, p.lda, p.a_last, warp_m);
  Operand<BN, BK, Traits::kMajorB, Traits::kGroup, false, Traits::kNarrow> b(p.n, p.k, p.ldb, p.b_last, warp_n);
  const auto* const all_a = static_cast<const uint16_t*>(p.a);
  const auto* const all_b = static_cast<const uint16_t*>(p.b);
  Cursor problem(p.batches, p.batch_inner, blockIdx.x * Traits::PROBLEMS + warp / kWarps, gridDim.x * Traits::PROBLEMS);
  Cursor fetched = problem;  // the problem whose k-tiles are being fetched
  int fetched_k = 0;
  const uint16_t *from_a = all_a + fetched.offset(p.a_batch), *from_b = all_b + fetched.offset(p.b_batch);
  const auto fetch = [&](int stage) {
    if (fetched.inside()) {
      unsigned char* const to = ring + stage * Traits::kStageBytes;
      a.fetch(to, from_a, fetched_k);
      b.fetch(to + Traits::kBytesA, from_b, fetched_k);
      fetched_k += BK;
      if (fetched_k >= p.k) {
        fetched_k = 0;
        fetched.advance();
        from_a = all_a + fetched.offset(p.a_batch);
        from_b = all_b + fetched.offset(p.b_batch);
      }
    }
    ptx::cp_async_commit();
  };

  ptx::grid_dependency_wait();
  ptx::grid_launch_dependents();
#pragma unroll
  for (int s = 0; s < STAGES - 1; ++s) fetch(s);

  int stage = 0;
  for (; problem.inside(); problem.advance()) {
    float acc[MI][2 * NJ][4] = {};
    if constexpr (Traits::kNarrow) {
      a.begin(all_a + problem.offset(p.a_batch));
      b.begin(all_b + problem.offset(p.b_batch));
    }
    int left = p.k;
    do {
      ptx::cp_async_wait<STAGES - 2>();
      group_sync<kWarps>();  // this k-tile has arrived for all, and no thread reads the previous one any more
      fetch(stage == 0 ? STAGES - 1 : stage - 1);
      const unsigned char* const at = ring + stage * Traits::kStageBytes;
#pragma unroll
      for (int s = 0; s < BK / 16; ++s) {
        if (16 * s >= left) break;
        uint32_t frag_a[MI][4], frag_b[NJ][4];
#pragma unroll
        for (int i = 0; i < MI; ++i) a.load(frag_a[i], at, i, s);
#pragma unroll
        for (int j = 0; j < NJ; ++j) b.load(frag_b[j], at + Traits::kBytesA, j, s);
#pragma unroll
        for (int i = 0; i < MI; ++i) {
#pragma unroll
          for (int j = 0; j < 2 * NJ; ++j) {
            ptx::Mma<T>::m16n8k16(acc[i][j], frag_a[i], frag_b[j / 2][j % 2 * 2], frag_b[j / 2][j % 2 * 2 + 1]);
          }
        }
      }
      stage = stage + 1 == STAGES ? 0 : stage + 1;
      left -= BK;
    } while (left > 0);

    if (p.plain) {
      T* const d =
          static_cast<T*>(p.epilogue.d) + problem.offset(p.epilogue.d_batch) + warp_m * p.epilogue.ldd + warp_n;
      store_product<T, WM, WN>(d, p.epilogue.ldd, p.m - warp_m, p.n - warp_n, p.wide_d, acc,
                               reinterpret_cast<T*>(sums));
      continue;
    }
    const tile::BatchOffset offset{problem.offset(p.epilogue.d_batch), problem.offset(p.epilogue.c_batch)};
#pragma unroll 1  // emit_slice() is most of a kernel's code: one copy of it
    for (int i = 0; i < MI; ++i) {
      if (warp_m + 16 * i >= p.m) break;
      tile::with_constant<0, MI>(i, [&](auto which) {
#pragma unroll
        for (int j = 0; j < 2 * NJ; ++j) {
          const float (&v)[4] = acc[decltype(which)::value][j];
          float* const to = sums + lane / 4 * Traits::kSumRow + j * 8 + lane % 4 * 2;
          *reinterpret_cast<float2*>(to) = make_float2(v[0], v[1]);
          *reinterpret_cast<float2*>(to + 8 * Traits::kSumRow) = make_float2(v[2], v[3]);
        }
      });
      __syncwarp();
      // Unrolled, the kernels of 32x32 would spill.
      tile::emit_slice<T, 16, WN, false>(p.epilogue, offset, nullptr, warp_m + 16 * i, warp_n, sums, Traits::kSumRow);
      __syncwarp();
    }
  }
}

}  // namespace hgemm::batched_mma
