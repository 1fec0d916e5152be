// Copies the tiles of one operand from global to shared memory, for any alignment and any extents.
#pragma once

#include <cstdint>

#include "ptx/cp_async.cuh"
#include "ptx/shared.cuh"
#include "tile/swizzle.cuh"
#include "tile/unaligned.cuh"

namespace hgemm::tile {

/// Copies (ROWS, COLS) tiles of 16-bit elements, whose rows are contiguous in global memory, into swizzled shared
/// memory. Each fetch advances along k by (ROW_STEP, COL_STEP), one of which is zero. Elements beyond the end of k
/// arrive as zeros. Rows or columns beyond the outer extent of the matrix repeat the last one: results computed from
/// them are never stored.
///
/// `fetch` starts a transfer and `commit` finishes it. If every 16-byte chunk of the matrix is aligned and whole, the
/// copy is cp.async, and commit has nothing to do. Otherwise a chunk is not aligned: fetch loads the 32-bit words that
/// cover the chunk into registers (4, or 5 if the chunk starts in the middle of a word), and commit funnel-shifts them
/// into place. The latency hides behind the work between the two calls.
template <class T, int ROWS, int COLS, int ROW_STEP, int COL_STEP, int THREADS, bool kNarrow>
class TileCopy {
  static_assert(sizeof(T) == 2);
  static_assert((ROW_STEP == 0) != (COL_STEP == 0), "k runs along the rows or along the columns");
  using Layout = Swizzle<COLS>;
  static constexpr bool kRowsAreOuter = ROW_STEP == 0;
  static constexpr int kChunks = COLS / 8;
  static constexpr int kRowsPerPass = THREADS / kChunks;
  static constexpr int kCopies = ROWS / kRowsPerPass;  // chunks that a thread copies per tile
  static_assert(THREADS % kChunks == 0 && ROWS % kRowsPerPass == 0, "every thread must move the same number of chunks");

 public:
  static constexpr int kBytes = ROWS * COLS * 2;

  /// `origin`: element (0, 0) of the matrix; (row, col): first element of the first tile; (rows, cols): extents of the
  /// matrix. `wide`: all chunks are aligned and whole.
  __device__ __forceinline__ TileCopy(const T* origin, int64_t ld, int row, int col, int rows, int cols, bool wide)
      : step_((ROW_STEP * ld + COL_STEP) * 2), rows_(rows), cols_(cols), wide_(wide) {
    const int first_row = threadIdx.x / kChunks, chunk = threadIdx.x % kChunks;
    row_ = row + first_row - ROW_STEP;
    col_ = col + chunk * 8 - COL_STEP;
    if (!kRowsAreOuter) col_ = min(col_, (cols - 1) / 8 * 8);
#pragma unroll
    for (int i = 0; i < kCopies; ++i) at_[i] = reinterpret_cast<uint64_t>(origin) + (row_of(i) * ld + col_) * 2;
    smem_offset_ = Layout::offset(first_row, chunk);
  }

  /// Starts to copy the next tile to the stage at shared address `dst`.
  __device__ __forceinline__ void fetch(uint32_t dst) {
    // NOTE: the address advances before the copy, not after it. A copy in flight still reads its address register, and
    // an addition after the copy would wait for that.
    row_ += ROW_STEP;
    col_ += COL_STEP;
#pragma unroll
    for (int i = 0; i < kCopies; ++i) at_[i] += step_;
    if (wide_path()) {
#pragma unroll
      for (int i = 0; i < kCopies; ++i) {
        const bool inside = kRowsAreOuter ? col_ < cols_ : row_of(i) < rows_;
        ptx::cp_async_16(dst + smem_offset(i), reinterpret_cast<const void*>(at_[i]), inside);
      }
    } else {
      fetch_words();
    }
  }

  /// Finishes the last fetch, into the stage at shared address `dst`.
  __device__ __forceinline__ void commit(uint32_t dst) {
    if (wide_path()) return;
    if constexpr (kNarrow) {
#pragma unroll
      for (int i = 0; i < kCopies; ++i) {
        uint32_t out[4];
        align_words(out, staged_[i], static_cast<int>(skew_ >> i & 1), valid());
        ptx::st_shared_16(dst + smem_offset(i), out);
      }
    }
  }

 private:
  __device__ __forceinline__ bool wide_path() const { return !kNarrow || wide_; }
  /// The row of the matrix that this thread's i-th chunk comes from.
  __device__ __forceinline__ int row_of(int i) const {
    const int row = row_ + i * kRowsPerPass;
    return kRowsAreOuter ? min(row, rows_ - 1) : row;
  }
  __device__ __forceinline__ uint32_t smem_offset(int i) const {
    static_assert(kRowsPerPass % Layout::kPeriod == 0, "passes must agree in their swizzle");
    return smem_offset_ + i * kRowsPerPass * COLS * 2;
  }
  __device__ __forceinline__ void fetch_words() {
    if constexpr (kNarrow) {
      skew_ = 0;
#pragma unroll
      for (int i = 0; i < kCopies; ++i) {
        const int row = row_of(i);
        const bool at_end = row + 1 >= rows_ && col_ + 8 >= cols_;
        load_words(staged_[i], at_[i], row < rows_ ? valid() : 0, at_end);
        skew_ |= static_cast<uint32_t>(word_skew(at_[i])) << i;
      }
    }
  }
  /// The number of elements of a staged chunk that lie inside the matrix.
  __device__ __forceinline__ int valid() const { return min(max(cols_ - col_, 0), 8); }

  uint64_t at_[kCopies];         // addresses of this thread's chunks
  int64_t step_;                 // bytes to the next tile
  int row_, col_, rows_, cols_;  // row_, col_: of this thread's first chunk
  uint32_t smem_offset_;         // offset of that chunk in the tile
  bool wide_;
  uint32_t skew_ = 0;  // bit i: chunk i starts in the middle of a word
  uint32_t staged_[kNarrow ? kCopies : 1][5];
};

}  // namespace hgemm::tile
