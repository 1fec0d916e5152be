// Global -> shared copy of one operand tile, any alignment, any ragged edge.
#pragma once

#include <cstdint>

#include "ptx/cp_async.cuh"
#include "ptx/shared.cuh"
#include "tile/swizzle.cuh"
#include "tile/unaligned.cuh"

namespace hgemm::tile {

/// Moves (ROWS, COLS) tiles of 16-bit elements, whose rows are contiguous in global memory, into swizzled shared
/// memory; each fetch advances by (ROW_STEP, COL_STEP). Elements outside the matrix arrive as zeros.
///
/// `fetch` starts a transfer and `commit` finishes it. Where every 16-byte chunk of the matrix is aligned and whole,
/// the copy is cp.async and commit has nothing to do. Elsewhere a chunk straddles aligned words: fetch loads the 32-bit
/// words that cover it into registers (4, or 5 when the chunk starts in the middle of a word) and commit funnel-shifts
/// them into place, so the latency hides behind whatever runs in between.
template <class T, int ROWS, int COLS, int ROW_STEP, int COL_STEP, int THREADS, bool kNarrow>
class TileCopy {
  static_assert(sizeof(T) == 2);
  using Layout = Swizzle<COLS>;
  static constexpr int kChunks = COLS / 8;
  static constexpr int kRowsPerPass = THREADS / kChunks;
  static constexpr int kIters = ROWS / kRowsPerPass;
  static_assert(THREADS % kChunks == 0 && ROWS % kRowsPerPass == 0, "every thread must move the same number of chunks");

 public:
  static constexpr int kBytes = ROWS * COLS * 2;

  /// `origin`: element (0, 0) of the matrix; (row, col): the first tile's corner; (rows, cols): the matrix's extent.
  __device__ __forceinline__ TileCopy(const T* origin, int64_t ld, int row, int col, int rows, int cols, bool wide)
      : ld_(ld), rows_(rows), cols_(cols), wide_(wide) {
    const int t = threadIdx.x;
    first_row_ = t / kChunks;
    chunk_ = t % kChunks;
    row_ = row + first_row_;
    col_ = col + chunk_ * 8;
    at_ = origin + row_ * ld_ + col_;
  }

  /// Starts copying the current tile to the stage at shared address `dst` and advances.
  __device__ __forceinline__ void fetch(uint32_t dst) {
    if (wide_path()) {
      const T* p = at_;
#pragma unroll
      for (int i = 0; i < kIters; ++i) {
        const bool inside = row_ + i * kRowsPerPass < rows_ && col_ < cols_;
        ptx::cp_async_16(dst + smem_offset(i), p, inside);
        p += kRowsPerPass * ld_;
      }
    } else {
      fetch_words();
    }
    row_ += ROW_STEP;
    col_ += COL_STEP;
    at_ += ROW_STEP * ld_ + COL_STEP;
  }

  /// Finishes the last fetch into the stage at `dst`.
  __device__ __forceinline__ void commit(uint32_t dst) {
    if (wide_path()) return;
    if constexpr (kNarrow) {
#pragma unroll
      for (int i = 0; i < kIters; ++i) {
        uint32_t out[4];
        align_words(out, staged_[i], static_cast<int>(skew_ >> i & 1), valid_);
        ptx::st_shared_16(dst + smem_offset(i), out);
      }
    }
  }

 private:
  __device__ __forceinline__ bool wide_path() const { return !kNarrow || wide_; }
  __device__ __forceinline__ uint32_t smem_offset(int i) const {
    return Layout::offset(first_row_ + i * kRowsPerPass, chunk_);
  }
  __device__ __forceinline__ void fetch_words() {
    if constexpr (kNarrow) {
      skew_ = 0;
      valid_ = min(max(cols_ - col_, 0), 8);
#pragma unroll
      for (int i = 0; i < kIters; ++i) {
        const int row = row_ + i * kRowsPerPass;
        const uint64_t addr = reinterpret_cast<uint64_t>(at_ + i * kRowsPerPass * ld_);
        const bool at_end = row + 1 >= rows_ && col_ + 8 >= cols_;
        load_words(staged_[i], addr, row < rows_ ? valid_ : 0, at_end);
        skew_ |= static_cast<uint32_t>(word_skew(addr)) << i;
      }
    }
  }

  const T* at_;  // this thread's first chunk
  int64_t ld_;
  int row_, col_, rows_, cols_;  // row_, col_: its coordinates in the matrix
  int first_row_, chunk_;        // and in the tile
  bool wide_;
  int valid_ = 0;      // elements of the staged chunks inside the matrix
  uint32_t skew_ = 0;  // bit i: chunk i starts in the middle of a word
  uint32_t staged_[kNarrow ? kIters : 1][5];
};

}  // namespace hgemm::tile
