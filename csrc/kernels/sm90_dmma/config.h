// What the host side of sm90_dmma (list.h, variants.cc) and its CUDA side share: configurations, the places of elements
// in shared memory and in fragments, the schedule of a launch, the launcher.
#pragma once

#include <algorithm>

#include "core/host_device.h"
#include "core/problem.h"
#include "tile/raster.h"

namespace hgemm::sm90_dmma {

/// The k of a step: one m16n8k16 takes it.
constexpr int BK = 16;

/// The columns of a warp's part of the output tile: four mma of eight columns.
constexpr int WN = 32;

/// The constants of a kernel: output tile (BM, BN) of a block; rows WM of the part that a warp computes, which has WN
/// columns; groups of warps that share the steps of K; pipeline stages; blocks per SM that registers and shared memory
/// are limited for; the type T of the elements, float or double.
///
/// Each group computes the whole output tile, over every GROUPS-th step of K, with a pipeline and a barrier of its own.
/// One block with three groups leaves a third of the partial sums that three blocks would leave in the workspace.
template <int BM_, int BN_, int WM_, int GROUPS_, int STAGES_, int BLOCKS_, class T_ = float>
struct Config {
  using T = T_;
  static constexpr int BM = BM_, BN = BN_, WM = WM_, GROUPS = GROUPS_, STAGES = STAGES_, BLOCKS = BLOCKS_;
  static constexpr int kWarpsM = BM / WM, kWarpsN = BN / WN, kGroupWarps = kWarpsM * kWarpsN;
  static constexpr int kGroupThreads = 32 * kGroupWarps, kThreads = GROUPS * kGroupThreads;
  static constexpr int kStage = (BM + BN) * BK, kRing = STAGES * kStage;  // elements of a stage, and of a group's ring
  // After the main loop, shared memory holds the sums of all groups but the first, (GROUPS - 1, BM, BN) doubles in the
  // order of the fragments, then the results of the first group's warps, (kGroupWarps, WM, WN) floats; float64 results
  // are stored from registers. In a cluster, the first group's results come in the place of all of this, as doubles.
  static constexpr int kSumsBytes = (GROUPS - 1) * BM * BN * 8, kResultBytes = sizeof(T) == 4 ? BM * BN * 4 : 0;
  // Behind all of them is the place of the block's tile (tile::RasterUnit), if it is one of a triangle.
  static constexpr int kTileAt = std::max({GROUPS * kRing * int{sizeof(T)}, kSumsBytes + kResultBytes, BM * BN * 8});
  static constexpr int kSmemBytes = kTileAt + int{sizeof(tile::RasterUnit)};
  static_assert(WM % 32 == 0 && BM % WM == 0 && BN % WN == 0);
  static_assert((kGroupWarps & (kGroupWarps - 1)) == 0, "warps rotate over the parts of the tile");
  static_assert(GROUPS < 16, "barrier 0 is that of the block, the groups have one each");
  static_assert(STAGES >= 3);
};

/// Where an operand's element of type T is in its part of a stage, in units of four bytes: element (x, k) of an
/// EXTENT x BK tile; x counts rows of A or columns of B.
///
/// Lanes read fours: four neighbours along K if the operand is K-major, otherwise along x.
///
/// float, K-major: rows of 16 elements. Two of them make a line of 128 bytes, in an order that depends on x / 16. Eight
/// lanes read 16 bytes each of two rows that are 1 apart (A) or 16 apart (B), and find them in different halves.
///
/// float, MN-major: a row of EXTENT elements for each k. Its 16-byte chunks are exchanged by XOR with k / 4. Eight
/// lanes read the chunks c and c + 4 for k, k + 4, k + 8 and k + 12, which are in different banks.
///
/// double: the rows and the fours lie in the same order, and are twice as long. A lane reads a four as two chunks of 16
/// bytes. In one of the two rows (of the fours c and c + 4) that eight lanes read, these are exchanged, so the first
/// chunks of all eight are in different banks, and the second ones as well. Both stay in one sector of 32 bytes: if
/// cp.async has to write a sector to two lines of shared memory, copies take twice as long (NOTES.md).
template <int EXTENT, bool kKMajor, class T = float>
struct Places {
  static_assert(EXTENT % 32 == 0);
  static constexpr bool kIsDouble = sizeof(T) == 8;
  static HGEMM_HOST_DEVICE constexpr int at(int x, int k) {
    if (kIsDouble && kKMajor) return x * 32 + (k >> 2) * 8 + ((k >> 1 ^ x ^ x >> 4) & 1) * 4 + (k & 1) * 2;
    if (kIsDouble) return k * EXTENT * 2 + (x >> 2 ^ k >> 2) * 8 + ((x >> 1 ^ x >> 4) & 1) * 4 + (x & 1) * 2;
    if (kKMajor) return (x >> 1) * 32 + ((x ^ x >> 4) & 1) * 16 + k;
    return k * EXTENT + ((x >> 2) ^ (k >> 2)) * 4 + (x & 3);
  }

  /// The same by row and column in memory order.
  static HGEMM_HOST_DEVICE constexpr int in_memory(int row, int column) {
    return kKMajor ? at(row, column) : at(column, row);
  }
};

/// The place of the second chunk of a four of doubles, from that of the first one.
HGEMM_HOST_DEVICE constexpr int second_chunk(int first) {
  return first ^ 4;
}

/// The places, in bytes, of elements in the same column of every APART-th row, in memory order, from the first one's,
/// whose row is less than APART.
template <int EXTENT, bool kKMajor, int APART, class T = float>
struct TurnPlaces {
  static_assert((APART & (APART - 1)) == 0 && (!kKMajor || APART > 1) && (sizeof(T) == 4 || APART <= 16));
  static HGEMM_HOST_DEVICE constexpr int at(int first, int turn) {
    const int row = turn * APART;
    if (sizeof(T) == 8) {
      return kKMajor ? (first ^ (row >> 4 & 1) * 16) + row * 128 : (first ^ (row >> 2) * 32) + row * EXTENT * 8;
    }
    if (kKMajor) return (first ^ (row >> 4 & 1) * 64) + (row >> 1) * 128;
    return (first ^ (row >> 2) * 16) + row * EXTENT * 4;
  }
};

/// Where a result is in a warp's (WM, WN) results in shared memory, in floats. Rows that are 1 or 16 apart have their
/// halves exchanged.
HGEMM_HOST_DEVICE constexpr int result_at(int row, int col) {
  return row * WN + (((row ^ row >> 4) & 1) * 16 ^ col);
}

// Which elements of a warp's part of a tile the slots of the fragments hold. The order of k, of rows and of columns is
// free, as long as A and B agree about k. These orders let a lane read four neighbours with each load. `g` and `t` are
// lane / 4 and lane % 4.

/// The k of slot t + 4j of a step.
HGEMM_HOST_DEVICE constexpr int k_of(int t, int j) {
  return 4 * t + j;
}
/// The column of slot g of the j-th of four mma along N. A lane's results are in the columns of slots 2t and 2t + 1.
HGEMM_HOST_DEVICE constexpr int column_of(int j, int g) {
  return 16 * (g & 1) + 4 * (g >> 1) + j;
}
/// The row of slot g + 8h of the i-th mma along M. With a K-major A the rows of an mma are neighbours, so that a tile
/// with few rows needs few mma. With an MN-major A a lane reads four neighbouring rows.
template <bool kKMajor>
HGEMM_HOST_DEVICE constexpr int row_of(int i, int h, int g) {
  return kKMajor ? 16 * i + 8 * h + g : (i >> 1) * 32 + 16 * (g & 1) + 4 * (g >> 1) + 2 * (i & 1) + h;
}

/// The places in a stage that a lane reads, computed from the first one's. first_of_a() and first_of_b() give that one,
/// for a warp's part that begins at row of A or column of B `x0`, a multiple of 32. From second_chunk() of the first
/// one they are those of the second chunks.
template <int EXTENT, bool kKMajor, class T = float>
struct LanePlaces {
  using P = Places<EXTENT, kKMajor, T>;
  static HGEMM_HOST_DEVICE constexpr int first_of_a(int x0, int g, int t) {
    return P::at(x0 + row_of<kKMajor>(0, 0, g), k_of(t, 0));
  }
  static HGEMM_HOST_DEVICE constexpr int first_of_b(int x0, int g, int t) {
    return P::at(x0 + column_of(0, g), k_of(t, 0));
  }
  /// K-major: four k of the row of slot g + 8h of the i-th mma.
  static HGEMM_HOST_DEVICE constexpr int row(int first, int i, int h) {
    if (P::kIsDouble) return (first ^ (i & 1) * 4) + i * 512 + h * 256;
    return (first ^ (i & 1) * 16) + i * 256 + h * 128;
  }
  /// K-major: four k of the column of slot g of the j-th mma.
  static HGEMM_HOST_DEVICE constexpr int column(int first, int j) {
    return P::kIsDouble ? (first ^ (j & 1) * 4) + j * 32 : (first ^ (j & 1) * 16) + (j >> 1) * 32;
  }
  /// MN-major: four neighbouring rows or columns, 32 * band behind the first, of the k of slot t + 4j.
  static HGEMM_HOST_DEVICE constexpr int k(int first, int band, int j) {
    return first + (32 * band + j * EXTENT) * (P::kIsDouble ? 2 : 1);
  }
};

/// Whether A consists of aligned chunks of 16 bytes: its rows in memory order begin at multiples of 16 bytes, and are
/// multiples of 16 bytes long.
inline bool has_chunks_a(const Problem& p) {
  return alignment_a(p) == 16 && (p.a_major() == Major::kK ? p.k : p.m) * dtype_bytes(p.dtype) % 16 == 0;
}
inline bool has_chunks_b(const Problem& p) {
  return alignment_b(p) == 16 && (p.b_major() == Major::kK ? p.k : p.n) * dtype_bytes(p.dtype) % 16 == 0;
}

/// Whether one triangle of D is enough, each result of which is stored twice: x @ x.T and x.T @ x.
inline bool may_mirror(const Problem& p) {
  return p.b_is_a_transposed && p.m == p.n && p.a_major() == p.b_major();
}

/// How a launch divides the problem.
struct Schedule {
  /// Slices of K.
  int slices;

  /// The slices, 2, 4 or 8, are the blocks of a cluster. Otherwise the workspace holds (slices, batches, m, pitch)
  /// doubles, unless there is one slice.
  bool in_cluster;

  /// The row pitch of these partial sums: n, rounded up to a multiple of four.
  int pitch;

  /// Only the tiles that touch the upper triangle of D are computed. may_mirror() is true.
  bool is_triangle;
};

/// Enqueues the GEMM and returns a cudaError_t. launch.cuh defines the function; instances.cu instantiates it for each
/// kernel of list.h.
template <class Config>
Status launch(const Problem& p, const Schedule& s, void* workspace, Stream stream);

}  // namespace hgemm::sm90_dmma
