// XOR swizzle of 16-byte chunks inside a tile in shared memory, which avoids bank conflicts without padding.
//
// ldmatrix reads 8 rows of 16 bytes at a time, and a 128-byte line covers all 32 banks once. The 8 chunks must
// therefore lie in 8 different 16-byte columns of a line. In plain rows of COLS elements all 8 would lie in the same
// column. XOR of the chunk index with the line index spreads them, and the stores, where 8 threads fill one line, stay
// free of conflicts too.
#pragma once

namespace hgemm::tile {

/// A (ROWS, COLS) tile of 16-bit elements, row-major, COLS a power of two of at least 16.
template <int COLS>
struct Swizzle {
  static constexpr int kChunks = COLS / 8;                             // 16-byte chunks per row
  static constexpr int kRowsPerLine = kChunks >= 8 ? 1 : 8 / kChunks;  // rows that share a 128-byte line
  static constexpr int kPhases = kChunks >= 8 ? 8 : kChunks;           // chunks to spread over
  static constexpr int kPeriod = kRowsPerLine * kPhases;               // rows after which the pattern repeats
  static_assert(kChunks >= 2 && (kChunks & (kChunks - 1)) == 0, "COLS must be a power of two of at least 16");

  static __device__ __forceinline__ int phase(int row) { return (row / kRowsPerLine) % kPhases; }
  /// The byte offset of a chunk.
  static __device__ __forceinline__ int offset(int row, int chunk) {
    return row * (COLS * 2) + ((chunk ^ phase(row)) * 16);
  }
};

}  // namespace hgemm::tile
