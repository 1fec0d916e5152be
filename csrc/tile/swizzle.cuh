// XOR swizzle of 16-byte chunks inside a shared-memory tile: bank conflicts vanish without padding.
//
// ldmatrix reads 8 rows of 16 bytes at a time and a 128-byte line holds all 32 banks once, so the 8 chunks must lie in
// 8 different sixteenths of a line. Rows of COLS elements would put them all in one; XOR-ing the chunk index with the
// line index spreads them, and the stores (8 threads filling one line) stay conflict-free too.
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
  /// Byte offset of a chunk.
  static __device__ __forceinline__ int offset(int row, int chunk) {
    return row * (COLS * 2) + ((chunk ^ phase(row)) * 16);
  }
};

}  // namespace hgemm::tile
