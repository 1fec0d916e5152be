// What the host side of batched_mma (list.h, variants.cc) and its CUDA side share: configurations, the schedule of a
// launch, the launcher.
#pragma once

#include "core/problem.h"
#include "core/whole_batch.h"

namespace hgemm::batched_mma {

/// The constants of a kernel: the largest M and N (BM, BN), the k-tile BK, the part (WM, WN) of D that a warp computes,
/// pipeline stages, problems (matrices of the batch) that a block works on at a time, and blocks per SM that the
/// registers are limited for.
template <int BM_, int BN_, int BK_, int WM_, int WN_, int STAGES_, int PROBLEMS_, int RESIDENT_>
struct Config {
  static constexpr int BM = BM_, BN = BN_, BK = BK_, WM = WM_, WN = WN_, STAGES = STAGES_;
  static constexpr int PROBLEMS = PROBLEMS_, RESIDENT = RESIDENT_;
  static constexpr bool kIsAlwaysNarrow = false, kIsInPlace = false;
  static constexpr bool kTakesWhole = BM == 64;  // is_whole_batch() goes to the kernel of Whole64
  static constexpr int kWarpsM = BM / WM, kWarps = kWarpsM * (BN / WN);  // warps per problem
  static constexpr int kThreads = 32 * kWarps * PROBLEMS;
  // The epilogue's scratch of a warp: rows, and their pitch in floats. The padding keeps the fragment stores free of
  // bank conflicts.
  static constexpr int kSumRows = 16, kSumRow = WN + 8;
  static constexpr int kSumBytes = kSumRows * kSumRow * 4;
  /// Bytes of an operand's k-tile in shared memory. `narrow`: the operands are not wide; rows then need more space,
  /// since they keep their offset from a 32-bit word boundary.
  static constexpr int step_bytes(int extent, Major major, bool narrow) {
    return 2 * extent * BK + (narrow ? 16 * (major == Major::kK ? extent : BK) : 0);
  }
  static constexpr int smem_bytes(Major a, Major b, bool narrow) {
    return PROBLEMS * (STAGES * (step_bytes(BM, a, narrow) + step_bytes(BN, b, narrow)) + kWarps * kSumBytes);
  }
  static_assert(BM % WM == 0 && BN % WN == 0 && WM % 16 == 0 && WN % 16 == 0 && BK % 16 == 0);
  static_assert(STAGES >= 2, "one is read while others arrive");
  static_assert(PROBLEMS == 1 || kWarps == 1, "the warps of a problem meet at the block's barrier");
};

/// A Config whose kernel reads wide operands as it reads others. It saves the time to compile a kernel for wide ones.
template <class Base>
struct AlwaysNarrow : Base {
  static constexpr bool kIsAlwaysNarrow = true;
};

/// True if both operands consist of whole aligned 16-byte chunks.
inline bool is_wide(const Problem& p) {
  return has_whole_chunks(p);
}

/// The constants of a kernel that copies whole matrices (whole_kernel.cuh): the largest M, N and K (BM, BN, BK), the
/// part (WM, WN) of D that a warp computes, and blocks per SM that the registers are limited for.
template <int BM_, int BN_, int BK_, int WM_, int WN_, int RESIDENT_>
struct WholeConfig {
  static constexpr int BM = BM_, BN = BN_, BK = BK_, WM = WM_, WN = WN_, RESIDENT = RESIDENT_;
  static constexpr int kThreads = BM / WM * (BN / WN) * 32;
  static constexpr int kTileBytesA = 2 * BM * BK, kTileBytesB = 2 * BN * BK;
  // Spans begin and end inside of chunks of 16 bytes, and are read up to 16 bytes beyond their last chunk.
  static constexpr int kEdgeBytes = 48;
  static constexpr int kSpanBytesA = kTileBytesA + kEdgeBytes, kSpanBytesB = kTileBytesB + kEdgeBytes;
  static constexpr int kResultBytes = 2 * BM * BN + kEdgeBytes;
  static constexpr int kTileBytes = kTileBytesA + kTileBytesB > kResultBytes ? kTileBytesA + kTileBytesB : kResultBytes;
  static constexpr int kSmemBytes = kTileBytes + kSpanBytesA + kSpanBytesB;
};
using Whole64 = WholeConfig<kWholeSide, kWholeSide, kWholeK, 32, 32, 5>;

/// The constants of a kernel whose tiles take the place of the matrices (in_place_kernel.cuh): warps of a block, chunks
/// of eight elements of an operand's tile for each thread, sixteenths of the rows of a warp's sub-tile (MI: it has 16
/// MI), and blocks per SM that the registers are limited for.
template <int WARPS_, int CHUNKS_, int MI_, int RESIDENT_>
struct InPlaceConfig {
  static constexpr int WARPS = WARPS_, CHUNKS = CHUNKS_, MI = MI_, RESIDENT = RESIDENT_;
  static constexpr bool kIsInPlace = true;
  static constexpr int kThreads = 32 * WARPS, kMostChunks = kThreads * CHUNKS;
};

/// The tile of an operand that takes the operand's place in shared memory.
struct InPlaceTile {
  int rows, length;        // of the matrix in memory
  int chunks;              // of eight elements, that a row consists of
  int outer;               // rows of a K-major tile, or columns of an MN-major one
  int pitch;               // bytes from a row of the tile to the next
  int bytes;               // of shared memory
  int full_rows;           // where rows are spread: those of whole groups of 64
  int apart;               // how far apart eight neighbours of the tile lie in the rows after these
  unsigned inverse_apart;  // 2^16 over that, rounded up
};

constexpr int kInPlaceSide = 256;  // M, N and K are at most that

/// How many times each bank of shared memory is used, at most, if the lanes of a warp store one result each. Eight
/// groups of lanes store elements that are `row` apart, and four lanes of a group those that are 0, 1, 2 and 3 `col`
/// apart. Distances count modulo 64, the elements of all banks, and `col` is even.
class BankConflicts {
 public:
  constexpr BankConflicts() {
    for (int row = 0; row < 64; ++row) {
      for (int col = 0; col < 64; col += 2) of_[row][col / 2] = count(row, col);
    }
  }
  constexpr int operator()(int row, int col) const { return of_[row % 64][col % 64 / 2]; }

 private:
  static constexpr signed char count(int row, int col) {
    signed char used[32] = {}, most = 0;
    for (int lane = 0; lane < 32; ++lane) {
      signed char& of_bank = used[(lane / 4 * row + lane % 4 * col) / 2 % 32];
      if (++of_bank > most) most = of_bank;
    }
    return most;
  }

  signed char of_[64][32] = {};
};
inline constexpr BankConflicts kBankConflicts;

/// The tile of an operand with such extents. If `apart` is not 0, its rows are spread: eight rows that are neighbours
/// in the tile lie 8 rows apart in the matrix, and `apart` rows in the last group, which has fewer than 64 rows.
inline InPlaceTile in_place_tile(Major major, int extent, int k, int apart) {
  const bool is_k_major = major == Major::kK;
  const int rest = extent % 64;
  InPlaceTile t{};
  t.rows = is_k_major ? extent : k;
  t.length = is_k_major ? k : extent;
  t.chunks = (t.length + 7) / 8;
  t.pitch = (t.chunks | 1) * 16;
  t.full_rows = extent - rest;
  t.apart = rest == 0 ? 0 : apart;
  t.inverse_apart = t.apart == 0 ? 0 : ((1 << 16) + t.apart - 1) / t.apart;
  t.outer = is_k_major && apart != 0 ? t.full_rows + 8 * t.apart : extent;
  // All of 16 k are read, which may be those of a chunk behind a K-major row. Spans begin and end inside of chunks of
  // 16 bytes, and are read up to 16 bytes beyond their last chunk.
  const int tile = is_k_major ? t.outer * t.pitch + 16 : (k + 15) / 16 * 16 * t.pitch;
  const int span = (2 * t.rows * t.length + 48 + 15) / 16 * 16;
  t.bytes = span > tile ? span : tile;
  return t;
}

/// The tiles of a problem, and the bytes of shared memory that they and the results take. X is A, unless that is
/// MN-major: then X is B.
struct InPlaceTiles {
  InPlaceTile x, y;
  int bytes;
  bool rotates;  // results of an MN-major X are stored in different orders by the four lanes that hold a row
};

inline InPlaceTiles in_place_tiles(const Problem& p) {
  const int m = static_cast<int>(p.m), n = static_cast<int>(p.n), k = static_cast<int>(p.k);
  const bool swaps = p.a_major() == Major::kMN;
  const Major major_x = swaps ? p.b_major() : p.a_major(), major_y = swaps ? p.a_major() : p.b_major();
  const int extent_x = swaps ? n : m, extent_y = swaps ? m : n, row = swaps ? 1 : n, col = swaps ? 2 * n : 2;
  InPlaceTiles t{};
  int apart = 0;
  if (major_x == Major::kK) {
    apart = (extent_x % 64 + 7) / 8;
    // The next even number needs no more blocks of 16 rows.
    if (apart % 2 != 0 && kBankConflicts((apart + 1) * row, col) < kBankConflicts(apart * row, col)) ++apart;
    if (apart == 0) apart = 8;
  } else {
    t.rotates = kBankConflicts(1, 10 * n) < kBankConflicts(1, col);
  }
  t.x = in_place_tile(major_x, extent_x, k, apart);
  t.y = in_place_tile(major_y, extent_y, k, 0);
  t.bytes = t.x.bytes + t.y.bytes + (2 * m * n + 32 + 15) / 16 * 16;
  return t;
}

/// The choices of one launch.
struct Schedule {
  /// Blocks of the grid. Together they work on blocks * PROBLEMS consecutive problems at a time.
  int blocks;

  /// The kernel that copies whole matrices runs.
  bool whole;

  /// The device has programmatic dependent launch.
  bool dependent;

  /// The most bytes of shared memory that a block can have. Only kernels of an InPlaceConfig are told.
  int most_smem = 0;
};

/// Enqueues the GEMM and returns a cudaError_t. launch.cuh defines the function; instances.cu instantiates it for each
/// kernel of list.h.
template <class Config, DType kDType>
Status launch(const Problem& p, const Schedule& s, Stream stream);

}  // namespace hgemm::batched_mma
