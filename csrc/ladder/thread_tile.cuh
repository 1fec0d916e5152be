// Parts of steps 3 to 5: thread tiles within a block's tile of C, and slices of A and B in shared memory.
#pragma once

#include <cstdint>
#include <type_traits>

#include "ladder/cuda_core.cuh"
#include "ladder/element.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/smem_addr.cuh"

namespace hgemm::ladder {

/// The layout of A's slice in shared memory: as in global memory; transposed, so that a thread's rows are contiguous;
/// or transposed with every element repeated to fill a Lane.
enum Order { kRow, kCol, kColLanes };

/// The tiles of a step. All fields after bk come from the columns of variants.inc that are specific to the body.
struct Shape {
  int bm, bn, bk;
  int tm, tn;  // thread tile
  int width;   // elements in one access, global or shared, where the slice is large enough
  int group;   // consecutive rows (and columns) of a thread; groups of the other threads lie between its own
  int pad;     // elements appended to each row of a slice
  Order order_a;
  int wm = 0, wn = 0;  // warp tile; 0: the threads of the whole block form one grid
};

/// A (rows, cols) slice of an operand in shared memory: element (r, c) lies at r * kRowStep + c * kColStep.
template <int ROWS, int COLS, int PAD>
struct RowMajorSlice {
  static constexpr int kRows = ROWS, kCols = COLS, kRowStep = COLS + PAD, kColStep = 1, kElements = ROWS * (COLS + PAD);
};
template <int ROWS, int COLS, int PAD>
struct TransposedSlice {
  static constexpr int kRows = ROWS, kCols = COLS, kRowStep = 1, kColStep = ROWS + PAD, kElements = (ROWS + PAD) * COLS;
};

/// One dimension of a thread tile: COUNT rows in groups of GROUP consecutive ones. The groups of ACROSS threads
/// alternate, so that the groups of one thread are GROUP * ACROSS rows apart.
template <int COUNT, int GROUP, int ACROSS>
struct Strip {
  static_assert(COUNT % GROUP == 0);
  static constexpr int kCount = COUNT;
  static constexpr __host__ __device__ int offset(int i) { return i / GROUP * (GROUP * ACROSS) + i % GROUP; }
};

/// Everything that follows from an Element and a Shape.
template <class E, const Shape& S>
struct Tiling {
  using Element = E;
  using T = typename E::T;
  static constexpr int BM = S.bm, BN = S.bn, BK = S.bk, TM = S.tm, TN = S.tn;
  static constexpr int kWidth = S.width, kGroup = S.group;
  static constexpr int WM = S.wm > 0 ? S.wm : BM, WN = S.wn > 0 ? S.wn : BN;
  static constexpr int kThreadsM = WM / TM, kThreadsN = WN / TN;  // threads that share a warp tile
  static constexpr int kThreads = (BM / TM) * (BN / TN);
  static constexpr bool kWarpTiles = S.wm > 0;
  static_assert(BM % WM == 0 && BN % WN == 0 && WM % TM == 0 && WN % TN == 0 &&
                (!kWarpTiles || kThreadsM * kThreadsN == 32) && TN % E::kLanes == 0 && kGroup % kWidth == 0);

  using SliceA = std::conditional_t<S.order_a != kRow, TransposedSlice<BM, BK, S.pad>, RowMajorSlice<BM, BK, 0>>;
  using SliceB = RowMajorSlice<BK, BN, S.pad>;
  using StripM = Strip<TM, kGroup, kThreadsM>;
  using StripN = Strip<TN, kGroup, kThreadsN>;
  using StoredA = std::conditional_t<S.order_a == kColLanes, typename E::Lane, T>;
  struct alignas(16) Slices {
    StoredA a[SliceA::kElements];
    T b[SliceB::kElements];
  };

  static constexpr int fetch_width(int rows, int cols) {
    return rows * cols / kThreads < kWidth ? rows * cols / kThreads : kWidth;
  }
  static constexpr int kWidthA = fetch_width(BM, BK), kWidthB = fetch_width(BK, BN);

  static __device__ __forceinline__ StoredA stored(T x) {
    if constexpr (S.order_a == kColLanes) {
      return E::splat(x);
    } else {
      return x;
    }
  }

  // Registers that stay in use for the whole loop: accumulators, and words of slices in flight.
  static constexpr int kSums = TM * TN / E::kLanes;
  static constexpr int kStaged = (BM + BN) * BK / kThreads * static_cast<int>(sizeof(T)) / 4;
  /// Blocks that fit on an SM if addresses and fragments take some 50 registers in addition to `long_lived` ones. A
  /// thread then gets 128 registers (two blocks of 256 threads), 168 (three blocks of 128), or the maximum of 255.
  static constexpr int blocks_per_sm(int long_lived) {
    const int registers = long_lived <= 80 ? 128 : long_lived <= 112 ? 168 : 255;
    return registers * kThreads <= 65536 ? 65536 / (registers * kThreads) : 1;
  }
  // A column of A is read element by element from a row-major slice. Unrolled further, the compiler reads so far ahead
  // along k that it spills.
  static constexpr int kUnroll = S.order_a == kRow ? 2 : BK;
};

/// The registers that hold N elements in flight from global to shared memory.
template <class T, int N>
using Words = Pack<uint32_t, static_cast<int>(N * sizeof(T) / 4)>;

__device__ __forceinline__ uint32_t bits_of(float x) {
  return __float_as_uint(x);
}
__device__ __forceinline__ uint32_t bits_of(__half x) {
  return __half_as_ushort(x);
}
template <class T>
__device__ __forceinline__ T from_bits(uint32_t bits);
template <>
__device__ __forceinline__ float from_bits<float>(uint32_t bits) {
  return __uint_as_float(bits);
}
template <>
__device__ __forceinline__ __half from_bits<__half>(uint32_t bits) {
  return __ushort_as_half(static_cast<unsigned short>(bits));
}

/// Loads N elements from p, as one access if `wide`. Only the first `valid` of them are inside the matrix (none if it
/// is 0 or less); the rest become zero.
template <int N, class T>
__device__ __forceinline__ Words<T, N> load_words(const T* p, int valid, bool wide) {
  Words<T, N> v{};
  if (wide) {
    if (valid > 0) v = *reinterpret_cast<const Words<T, N>*>(p);
  } else {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      if (i < valid) v.x[i * sizeof(T) / 4] |= bits_of(p[i]) << i * sizeof(T) % 4 * 8;
    }
  }
  return v;
}

template <int N, class T>
__device__ __forceinline__ void store_pack(T* p, const Pack<T, N>& v, int valid, bool wide) {
  if (wide) {
    if (valid > 0) *reinterpret_cast<Pack<T, N>*>(p) = v;
  } else {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      if (i < valid) p[i] = v.x[i];
    }
  }
}

/// Copies slices of one operand from global to shared memory through registers: `fetch` starts the loads of a slice,
/// and `commit` stores what has arrived. Elements outside the matrix become zero.
template <class Slice, int WIDTH, class Tiling>
class Staged {
  using T = typename Tiling::T;
  static constexpr int kPacksPerRow = Slice::kCols / WIDTH;
  static constexpr int kRowsPerPass = Tiling::kThreads / kPacksPerRow;

 protected:
  static constexpr int kPasses = Slice::kRows / kRowsPerPass;
  static_assert(kPasses * kRowsPerPass == Slice::kRows && kRowsPerPass * kPacksPerRow == Tiling::kThreads);

 public:
  /// (row, col): corner of the first slice; (rows, cols): extent of the matrix.
  __device__ __forceinline__ Staged(const T* matrix, int64_t ld, int row, int col, int rows, int cols, bool wide)
      : ld_(ld), in_row_(threadIdx.x / kPacksPerRow), in_col_(threadIdx.x % kPacksPerRow * WIDTH), wide_(wide) {
    rows_left_ = rows - row - in_row_;
    cols_left_ = cols - col - in_col_;
    at_ = matrix + (row + in_row_) * ld + (col + in_col_);
  }

  template <class Stored>
  __device__ __forceinline__ void fetch(Stored*) {
#pragma unroll
    for (int i = 0; i < kPasses; ++i) staged_[i] = load_words<WIDTH>(at(i), valid(i), wide_);
  }

  template <class Stored>
  __device__ __forceinline__ void commit(Stored* slice) {
#pragma unroll
    for (int i = 0; i < kPasses; ++i) put(slice, i, staged_[i]);
  }

  /// Advances to the slice that starts (rows, cols) further.
  __device__ __forceinline__ void advance(int rows, int cols) {
    rows_left_ -= rows;
    cols_left_ -= cols;
    at_ += rows * ld_ + cols;
  }

 protected:
  __device__ __forceinline__ const T* at(int i) const { return at_ + i * kRowsPerPass * ld_; }
  __device__ __forceinline__ int valid(int i) const { return i * kRowsPerPass < rows_left_ ? cols_left_ : 0; }
  template <class Stored>
  __device__ __forceinline__ Stored* target(Stored* slice, int i) const {
    return slice + (in_row_ + i * kRowsPerPass) * Slice::kRowStep + in_col_ * Slice::kColStep;
  }
  template <class Stored>
  __device__ __forceinline__ void put(Stored* slice, int i, const Words<T, WIDTH>& v) const {
    Stored* at = target(slice, i);
    if constexpr (Slice::kColStep == 1) {
      *reinterpret_cast<Words<T, WIDTH>*>(at) = v;
    } else {
#pragma unroll
      for (int c = 0; c < WIDTH; ++c) {
        const T element = from_bits<T>(v.x[c * sizeof(T) / 4] >> c * sizeof(T) % 4 * 8);
        at[c * Slice::kColStep] = Tiling::stored(element);
      }
    }
  }

  const T* at_;  // this thread's first pack of the current slice
  int64_t ld_;
  int in_row_, in_col_;  // position of that pack in the slice
  int rows_left_, cols_left_;
  bool wide_;

 private:
  Words<T, WIDTH> staged_[kPasses];
};

/// Copies slices by cp.async, without registers in between, so that `commit` only waits. Where rows are not whole
/// aligned packs of 16 bytes, float32 elements are copied one by one, which needs no more alignment. float16 elements
/// are too small for cp.async; `fetch` loads and stores them at once.
template <class Slice, int WIDTH, class Tiling>
class Async : public Staged<Slice, WIDTH, Tiling> {
  using Base = Staged<Slice, WIDTH, Tiling>;
  using T = typename Tiling::T;
  static constexpr int kBytes = WIDTH * sizeof(T);
  static_assert(kBytes == 4 || (kBytes == 16 && Slice::kColStep == 1));

 public:
  using Base::Base;

  __device__ __forceinline__ void fetch(T* slice) {
#pragma unroll
    for (int i = 0; i < Base::kPasses; ++i) {
      const T* from = this->at(i);
      T* to = this->target(slice, i);
      const int valid = this->valid(i);
      if (this->wide_) {
        ptx::cp_async<kBytes>(ptx::smem_addr(to), from, valid > 0);
      } else if constexpr (sizeof(T) == 4) {
#pragma unroll
        for (int c = 0; c < WIDTH; ++c) ptx::cp_async<4>(ptx::smem_addr(to + c), from + c, c < valid);
      } else {
        this->put(slice, i, load_words<WIDTH>(from, valid, false));
      }
    }
  }
  __device__ __forceinline__ void commit(T*) { ptx::cp_async_wait_all(); }
};

/// The accumulators of a thread, and the position of its tile in the block tile.
template <class Tiling>
class ThreadTile {
  using E = typename Tiling::Element;
  using T = typename Tiling::T;
  using Lane = typename E::Lane;
  static constexpr int TM = Tiling::TM, TN = Tiling::TN, kWidth = Tiling::kWidth;
  using StripM = typename Tiling::StripM;
  using StripN = typename Tiling::StripN;

 public:
  struct Fragment {
    typename Tiling::StoredA a[TM];
    T b[TN];
  };

  /// (m, n): the thread's first element of the block's tile.
  __device__ __forceinline__ ThreadTile(int m, int n) : m_(m), n_(n) {}

  /// Reads the thread's elements of column k of A's slice and of row k of B's slice.
  template <class Slices>
  __device__ __forceinline__ void read(Fragment& f, const Slices& s, int k) const {
    using SliceA = typename Tiling::SliceA;
    using SliceB = typename Tiling::SliceB;
    read_strip<StripM, SliceA::kRowStep>(f.a, s.a + m_ * SliceA::kRowStep + k * SliceA::kColStep);
    read_strip<StripN, SliceB::kColStep>(f.b, s.b + n_ * SliceB::kColStep + k * SliceB::kRowStep);
  }

  /// Adds the outer product of a column of A and a row of B. With warp tiles, the order is row by row in a serpentine,
  /// so that consecutive FMAs share an operand: an FMA whose three sources lie in the same one of the two register
  /// banks takes a cycle more. Without warp tiles, slices in flight need registers too, and the order is column by
  /// column, the only one that never spills.
  __device__ __forceinline__ void multiply(const Fragment& f) {
    constexpr int kAcross = TN / E::kLanes;
#pragma unroll
    for (int step = 0; step < TM * kAcross; ++step) {
      const int i = Tiling::kWarpTiles ? step / kAcross : step % TM;
      const int turn = i % 2 == 0 ? step % kAcross : kAcross - 1 - step % kAcross;
      const int j = Tiling::kWarpTiles ? turn : step / TM;
      sums_[i][j] = mul_add(E::splat(f.a[i]), E::lane(f.b + j * E::kLanes), sums_[i][j]);
    }
  }

  /// Multiplies all k of a slice.
  template <class Slices>
  __device__ __forceinline__ void multiply_slices(const Slices& s) {
#pragma unroll Tiling::kUnroll
    for (int k = 0; k < Tiling::BK; ++k) {
      Fragment f;
      read(f, s, k);
      multiply(f);
    }
  }

  __device__ __forceinline__ void store(const Product<T>& g, Corner corner) const {
#pragma unroll
    for (int i = 0; i < TM; ++i) {
      const int m = corner.m + m_ + StripM::offset(i);
      T* row = g.d + static_cast<int64_t>(m) * g.n;
#pragma unroll
      for (int j = 0; j < TN; j += kWidth) {
        const int n = corner.n + n_ + StripN::offset(j);
        Pack<T, kWidth> v;
#pragma unroll
        for (int c = 0; c < kWidth; ++c) v.x[c] = E::element(sums_[i][(j + c) / E::kLanes], (j + c) % E::kLanes);
        store_pack(row + n, v, m < g.m ? g.n - n : 0, g.wide_d);
      }
    }
  }

 private:
  template <class Strip, int STEP, class Stored>
  static __device__ __forceinline__ void read_strip(Stored (&out)[Strip::kCount], const Stored* first) {
    constexpr int kTogether = STEP == 1 ? kWidth * sizeof(T) / sizeof(Stored) : 1;
#pragma unroll
    for (int i = 0; i < Strip::kCount; i += kTogether) {
      const auto v = *reinterpret_cast<const Pack<Stored, kTogether>*>(first + Strip::offset(i) * STEP);
#pragma unroll
      for (int j = 0; j < kTogether; ++j) out[i + j] = v.x[j];
    }
  }

  Lane sums_[TM][TN / E::kLanes] = {};
  int m_, n_;
};

/// The tile of this thread. Without warp tiles, the threads of a block lie side by side, row after row. With warp
/// tiles, two neighbouring lanes lie one below the other, and these pairs go across, then down: where neighbouring
/// lanes read the same address, the two halves of a warp's 16-byte access share their wavefronts.
template <class Tiling>
__device__ __forceinline__ ThreadTile<Tiling> thread_tile_of_block() {
  const int t = threadIdx.x;
  int m = t / Tiling::kThreadsN * Tiling::kGroup, n = t % Tiling::kThreadsN * Tiling::kGroup;
  if constexpr (Tiling::kWarpTiles) {
    constexpr int kWarpsN = Tiling::BN / Tiling::WN;
    const int warp = t / 32, lane = t % 32;
    m = warp / kWarpsN * Tiling::WM + (lane % 2 + lane / (2 * Tiling::kThreadsN) * 2) * Tiling::kGroup;
    n = warp % kWarpsN * Tiling::WN + lane / 2 % Tiling::kThreadsN * Tiling::kGroup;
  }
  return {m, n};
}

/// Enqueues a kernel with one block per tile of C. `smem_bytes`: dynamic shared memory.
template <class Tiling, class T>
Status launch_tiles(void (*kernel)(Product<T>), const Problem& p, int smem_bytes, Stream stream) {
  const Product<T> g = product_of<T>(p, {Tiling::kWidthA, Tiling::kWidthB, Tiling::kWidth});
  const unsigned blocks = grid_of<Tiling::BM, Tiling::BN>(p);
  return enqueue(kernel, blocks, Tiling::kThreads, smem_bytes, static_cast<cudaStream_t>(stream), g);
}

}  // namespace hgemm::ladder
