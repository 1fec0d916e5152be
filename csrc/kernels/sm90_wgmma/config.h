// Shared by the host side of sm90_wgmma (list.h, variants.cc) and its CUDA side: configurations and the launcher.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>

#include "core/problem.h"
#include "kernels/sm90_wgmma/stream_k.h"

namespace hgemm::sm90_wgmma {

/// How the two consumer warpgroups share the work.
enum class Consumers {
  kPingpong,     // each computes whole tiles: one is in its epilogue while the other multiplies
  kCooperative,  // each computes half of the rows of every tile
};

/// The compile-time parameters of a kernel: how the consumers share the work, the output tile of a block, the number of
/// pipeline stages, and the shape of the cluster. `kSwapped_`: see SwapAB.
template <Consumers kConsumers_, int BM_, int BN_, int STAGES_, int CM_, int CN_, int CK_, bool kSwapped_ = false>
struct Config {
  static constexpr Consumers kConsumers = kConsumers_;
  static constexpr bool kPingpong = kConsumers == Consumers::kPingpong;
  static constexpr int BM = BM_, BN = BN_, BK = 64, STAGES = STAGES_;
  static constexpr int CM = CM_, CN = CN_, CK = CK_;  // blocks of a cluster along M, N and K
  // Blocks of the cluster that compute different tiles of C. The blocks of one row of the cluster need the same tiles
  // of A and load them together; the blocks of one column do so with tiles of B.
  static constexpr int kSharers = CM * CN;
  static constexpr int kPeers = CM + CN - 1;  // blocks that need what one block loads, itself included
  static constexpr int kCluster = CM * CN * CK;
  static constexpr int WM = kPingpong ? BM : BM / 2;  // rows of a consumer warpgroup
  // Number of 32-column subtiles in a consumer warpgroup's result. An epilogue tile is 64 x 64; identifiers call each
  // of its two 64 x 32 subtiles a half.
  static constexpr int kHalves = 2 * (WM / 64) * ((BN + 63) / 64);
  // True if warps can write a D that TMA cannot write. Larger accumulators leave too few registers for it.
  static constexpr bool kCopies = WM / 64 * BN / 2 <= 192;
  // True if the kernel has the general epilogue (Finish::kAny). That epilogue takes about half of a kernel's compile
  // time and of its bytes, so only tiles whose width is a multiple of 64 columns have it, and clusters of four do not.
  static constexpr bool kStoresAny = kCopies && BN % 64 == 0 && kSharers <= 2;
  // True if the stores of a tile may be deferred into the main loop of the next tile.
  static constexpr bool kDefers = !kPingpong && CK == 1;
  static constexpr int kEpilogueTiles = kHalves / 2;
  static constexpr bool kStreamK = false, kCutsSlices = false, kEdged = false, kGrouped = false, kGroupsK = false;
  static constexpr bool kGated = false;
  static constexpr bool kSymmetric = false, kCarries = false, kSwapped = kSwapped_, kIsInt8 = false;
  static constexpr bool kMerged = false;
  static constexpr int kEdge = 128;  // columns of a residue tile (Edged)
  static constexpr int kWarpgroupThreads = 128;
  static constexpr int kConsumerThreads = 2 * kWarpgroupThreads;
  static constexpr int kThreads = kConsumerThreads + kWarpgroupThreads;                  // with the producer's
  static constexpr int kTileThreads = kPingpong ? kWarpgroupThreads : kConsumerThreads;  // consumers of one tile
  // Arrivals that complete a phase of the mbarriers (the table in kernel.cuh).
  static constexpr int kFullArrivals = 1;                            // of the producer thread, with the bytes to come
  static constexpr int kEmptyArrivals = kTileThreads / 32 * kPeers;  // of each consumer warp of the tile, in each peer
  static constexpr int kSummedArrivals = 1;
  static constexpr int kStageBytesA = BM * BK * 2;
  // Split-K: each block of the cluster finishes kOwnHalves of the tile's 32-column subtiles. A separate buffer receives
  // the sums that the other blocks send for these subtiles.
  static constexpr int kOwnHalves = kHalves / CK;
  static constexpr int kHalfSumBytes = 2 * 128 * 64;
  static constexpr int kSumBytes = (CK - 1) * kOwnHalves * kHalfSumBytes;
  static constexpr int kBarrierBytes = (2 * STAGES + (CK > 1 ? 1 : 0)) * 8;
  static constexpr int kStagingWarpBytes = 16 * 128;  // one warp stages 16 rows of 128 bytes
  static constexpr int kStagingBytes = 8 * kStagingWarpBytes;
  static constexpr int kMaxSmemBytes = 232448;
  // TMA loads an MN-major B in boxes of 64 columns, so the stages of such a B are rounded up to a multiple of 64
  // columns and may not fit in shared memory. The tiles of an MN-major B must also start at a multiple of 32 bytes.
  static constexpr int kRoundedBytesB = (BN + 63) / 64 * 64 * BK * 2;
  static constexpr bool kTakesMnMajorB =
      !kSwapped && BN % 16 == 0 &&
      STAGES * (kStageBytesA + kRoundedBytesB) + kSumBytes + kBarrierBytes + (CK > 1 ? 0 : kStagingBytes) <=
          kMaxSmemBytes;
  static constexpr int kStageBytesB = kTakesMnMajorB ? kRoundedBytesB : BN * BK * 2;
  static constexpr int kStageBytes = kStageBytesA + kStageBytesB;
  static constexpr int kRestBytes = STAGES * kStageBytes + kSumBytes + kBarrierBytes;
  // Split-K stages results in the buffer of the sums, once the sums have been added.
  static constexpr int kStagingBuffers = CK > 1 ? 0 : kRestBytes + 2 * kStagingBytes <= kMaxSmemBytes ? 2 : 1;
  static constexpr int kSmemBytes = kRestBytes + kStagingBuffers * kStagingBytes;
  static_assert(WM % 64 == 0 && BN % 8 == 0 && BN >= 64 && BN <= 256);
  static_assert(WM / 64 * BN / 2 <= 208, "accumulators must leave registers for the rest");
  static_assert(kSmemBytes <= kMaxSmemBytes);
  static_assert(kCluster <= 8, "the largest portable cluster");
  static_assert(CK == 1 || (kSharers == 1 && !kPingpong), "split K: the whole cluster computes one tile");
  static_assert(kHalves % CK == 0, "split K: every block finishes the same number of halves");
  static_assert(CK == 1 || kSumBytes >= kStagingBytes);
};

/// A Config whose kernel computes D^T = B^T A^T, for row-major A. BN then counts rows of A. The K-major tile of A may
/// have any number of rows, whereas a tile of an MN-major B begins on a line only if BN is a multiple of 64.
template <Consumers kConsumers, int BM, int BN, int STAGES, int CM, int CN, int CK>
using SwapAB = Config<kConsumers, BM, BN, STAGES, CM, CN, CK, true>;

/// A Config whose kernel covers the last columns of C, the residue, by residue tiles (an `edge` in identifiers). A
/// residue tile is twice as high as the other tiles and kEdge columns wide. Clusters that would have no tile in the
/// last wave compute one each. Example: for 4096 x 4096, 256 work tiles (one per cluster) of 256 x 256 take four waves
/// of 66 clusters, almost exactly. 256 work tiles of 256 x 248 and eight residue tiles of 512 x 128 take four waves as
/// well, but of tiles that are 3 % smaller.
template <class Base>
struct Edged : Base {
  static constexpr bool kEdged = true;
  static constexpr int kStageBytes = 2 * Base::kStageBytesA + Base::kEdge * Base::BK * 2;
  static constexpr int kRestBytes = Base::STAGES * kStageBytes + Base::kBarrierBytes;
  static constexpr int kStagingBuffers = kRestBytes + 2 * Base::kStagingBytes <= Base::kMaxSmemBytes ? 2 : 1;
  static constexpr int kSmemBytes = kRestBytes + kStagingBuffers * Base::kStagingBytes;
  static_assert(Base::kDefers && Base::WM == 64 && Base::CN == 1 && Base::kHalves == 2 * Base::kEdge / 32);
  static_assert(kStageBytes >= Base::kStageBytes && kSmemBytes <= Base::kMaxSmemBytes);
};

/// A Config whose kernel splits some work tiles along K between clusters (stream-K). Of a Carried one: between slices
/// of K. Its sums are always those of four slices.
template <class Base>
struct StreamK : Base {
  static constexpr bool kStreamK = true, kCutsSlices = Base::kCarries;
  static constexpr int kReaders = Base::kTileThreads;
  // Threads of the named barrier that follows the stores of partial sums: the consumers of the tile, and the warp that
  // sets the flag.
  static constexpr int kPartialsThreads = kReaders + 32;
  static constexpr int kHalfBytes = kReaders * 16 * 4;  // partial sums of one 32-column subtile of every warp
  static constexpr int kPartialBytes = Base::kHalves * kHalfBytes;
  // Partial sums are loaded through the ring, as many 32-column subtiles in a stage as fit.
  static constexpr int kStageHalves = std::min(Base::kStageBytes / kHalfBytes, Base::kHalves);
  static constexpr int kPartialStages = (Base::kHalves + kStageHalves - 1) / kStageHalves;
  static constexpr int kSmemBytes = Base::kSmemBytes + 16;
  static_assert(kSmemBytes <= Base::kMaxSmemBytes);
  static_assert(Base::CK == 1 && Base::BN % 64 == 0, "no half overlaps another");
  static_assert(!Base::kDefers || Base::kHalves <= kSplitSteps);
};

/// A Config whose kernel computes x @ x.T or x.T @ x: only the work tiles that touch the upper triangle of D, half of
/// them all. It stores each tile twice, the second time transposed, to the mirror image. The sums of a pair of mirrored
/// elements have the same bits, so it does not matter that a tile which the diagonal crosses writes some of them twice.
/// The kernel has no general epilogue, and reads both operands in the same order.
template <class Base>
struct Symmetric : Base {
  static constexpr bool kSymmetric = true, kCopies = false, kStoresAny = false;
  static_assert(Base::CK == 1 && !Base::kSwapped && Base::kTakesMnMajorB);
  static_assert(Base::kStagingBuffers == 2, "one for the tile, one for its mirror image");
};

/// A Config whose kernel computes a batch whose matrices share B, of K-major A: the rows of all matrices are the rows
/// of one A (merged_rows.h), and the epilogue finds the place of each row in D and C. Example: 64 matrices of 27 rows
/// are 1,728 rows, which take 14 tiles of 128 rows instead of 64. Warps store D, since its rows need not be at one
/// stride.
template <class Base>
struct Merged : Base {
  static constexpr bool kMerged = true, kDefers = false;
  static_assert(Base::kPingpong && !Base::kSwapped && Base::CN == 1 && Base::CK == 1 && Base::BN % 64 == 0);
};

/// A Config whose kernel adds its accumulators to sums in float32 registers and starts again from zero: for float32
/// results every kCarriedK k (Sums::kCarried), for 16-bit results of four slices of K at the end of each of them
/// (Sums::kFourSlices), and for other 16-bit results every kCarriedK k as well, where a caller names the kernel. Where
/// the kernel has the general epilogue, it has no other code but that for D = alpha * A @ B.
template <class Base>
struct Carried : Base {
  static constexpr bool kCarries = true, kDefers = false;
  static constexpr int kCarrySteps = kCarriedK / Base::BK;
  static_assert(kCarrySteps == kSliceTiles);
  static_assert(kCarriedK % Base::BK == 0 && Base::CK == 1);
  static_assert(Base::WM == 64 && Base::BN <= 192, "the accumulators and the sums must fit the registers");
};

/// A Config whose kernel computes a grouped product (core/grouped.h): the rows of A belong to groups, each of which has
/// a B of its own. With SwapAB the rows of the groups are on the N side of wgmma.
template <class Base>
struct Grouped : Base {
  static constexpr bool kGrouped = true;
  static constexpr int kGroupRows = Base::kSwapped ? Base::BN * Base::CN : Base::BM * Base::CM;  // of a work tile
  static constexpr int kTileColumns = Base::kSwapped ? Base::BM * Base::CM : Base::BN * Base::CN;
  static constexpr int kMaxGroups = 1024;
  static constexpr int kMaxTurns = 256;  // work tiles of a cluster: the scheduler's table has an entry for each
  static constexpr int kSmemBytes = Base::kSmemBytes + 8 * (kMaxTurns + 1);
  // SwapAB: rows of a group are loaded this many at a time, because most groups have fewer rows than the tile.
  static constexpr int kBoxRows = 16;
  static_assert(kSmemBytes <= Base::kMaxSmemBytes);
  // True if the kernel exists as a Gated one: no other block of the cluster loads the same weights.
  static constexpr bool kGates = Base::kSwapped || (Base::CM == 1 && Base::BN % 128 == 0);
  static_assert(Base::CK == 1 && Base::BN % 64 == 0 && (!Base::kSwapped || Base::kSharers == 1));
};

/// A Grouped Config whose kernel computes act(gate) * up, where gate and up are the halves of a row of the product
/// (Problem::gated). Eight columns of the gate alternate with the same eight columns of up in a tile, so that a thread
/// has both accumulators of a result. D has half of the tile's columns.
template <class Base>
struct Gated : Base {
  static constexpr bool kGated = true, kDefers = false;
  static constexpr int kGateColumns = 8;
};

/// A Config whose kernel computes one matrix for each group of k: D[g] = A[:, k of g] @ B[k of g], the weight gradients
/// of a grouped product. Both operands are MN-major.
template <class Base>
struct GroupedK : Base {
  static constexpr bool kGroupsK = true;
  // The warps of a block that write zeros, those of the producer's warpgroup but its first, and the bytes that they
  // write at a time.
  static constexpr int kFillWarps = 3, kFillBytes = 16384;
  static constexpr int kMaxGroups = 512;
  static constexpr bool kDefers = false;  // the next tile may have hardly any k-tiles to defer stores into
  static constexpr int kTableBytes = 4 * (2 * kMaxGroups + 3);
  static constexpr bool kFits = Base::kSmemBytes + kTableBytes <= Base::kMaxSmemBytes;
  static constexpr int kStagingBuffers = kFits ? Base::kStagingBuffers : 1;
  static constexpr int kSmemBytes = Base::kRestBytes + kStagingBuffers * Base::kStagingBytes + kTableBytes;
  static_assert(kSmemBytes <= Base::kMaxSmemBytes);
  static_assert(Base::CK == 1 && Base::BN % 64 == 0 && !Base::kSwapped);
};

/// A Config whose kernel multiplies int8 matrices, both K-major, and stores the int32 sums as they are. It takes an
/// operand as pairs of elements along K, so BK counts pairs. An epilogue tile is 64 rows of 32 columns.
template <class Base>
struct Int8 : Base {
  static constexpr bool kIsInt8 = true, kCopies = false, kStoresAny = false, kDefers = false;
  static constexpr int kEpilogueTiles = Base::kHalves;
  static_assert(Base::CK == 1 && Base::BN % 64 == 0 && !Base::kSwapped);
};

/// True if TMA can read the operand in place: its rows start at multiples of 16 bytes and do not overlap.
inline bool is_tma_a(const Problem& p) {
  return alignment_a(p) == 16 && p.lda() >= (p.a_major() == Major::kK ? p.k : p.m);
}
inline bool is_tma_b(const Problem& p) {
  return alignment_b(p) == 16 && p.ldb() >= (p.b_major() == Major::kK ? p.k : p.n);
}

/// What the epilogue computes. All kinds but kAny write a 16-bit D by TMA. kScale and kBiasRelu can also write a 16-bit
/// D that TMA cannot write.
enum class Finish : int32_t {
  kScale,           // D = alpha * A @ B
  kBiasRelu,        // D = relu(alpha * A @ B + bias), where relu, bias or both may be absent
  kBiasActivation,  // the same with another activation, where A and B are K-major: linear layers
  kAny,
};

/// True if TMA can write D. TMA stores whole 16-byte chunks, so it would write past the end of a row whose length is
/// not a multiple of 16 bytes (ptx/tma.cuh).
inline bool stores_by_tma(const Problem& p) {
  return p.out_dtype != DType::kF32 && alignment_d(p) == 16 && p.n % 8 == 0 && p.d.row_stride >= p.n;
}
inline bool has_bias_pairs(const Problem& p) {
  return p.bias != nullptr && reinterpret_cast<uintptr_t>(p.bias) % 16 == 0 && p.n % 2 == 0;
}
inline Finish finish_of(const Problem& p) {
  const bool has_c = p.c.data != nullptr && p.beta != 0.0f;
  const bool is_odd_bias = p.bias != nullptr && !has_bias_pairs(p);
  if (has_c || is_odd_bias || p.pre_activation != nullptr || p.out_dtype == DType::kF32) return Finish::kAny;
  if (p.act == Activation::kNone && p.bias == nullptr) return Finish::kScale;
  if (p.act == Activation::kNone || p.act == Activation::kRelu) return Finish::kBiasRelu;
  const bool is_linear = p.a_major() == Major::kK && p.b_major() == Major::kK;
  return is_linear && stores_by_tma(p) ? Finish::kBiasActivation : Finish::kAny;
}

/// How a kernel writes D.
struct Stores {
  bool by_tma;
  Finish finish;
};
inline Stores stores_of(const Problem& p) {
  return {stores_by_tma(p), finish_of(p)};
}

/// The problem D^T = B^T A^T. q.d still describes D, not its transpose.
inline Problem swapped_problem(const Problem& p) {
  const auto transposed = [](Matrix x) {
    std::swap(x.row_stride, x.col_stride);
    return x;
  };
  Problem q = p;
  std::swap(q.m, q.n);
  q.a = transposed(p.b);
  q.b = transposed(p.a);
  return q;
}

/// Enqueues the GEMM. `workspace` holds the partial sums and flags of a stream-K kernel; other kernels need none.
/// launch.cuh defines the function, instances.cu instantiates it for each kernel of list.h.
template <class Config, DType kDType>
Status launch(const Problem& p, const DeviceFacts& facts, void* workspace, Stream stream);

/// Enqueues an int8 product, counted in pairs (tile/int8_operands.h). `Config` is an Int8 one. int8_launch.cuh defines
/// the function, int8_instances.cu instantiates it for each kernel of int8_list.h.
template <class Config>
Status launch_int8(const Problem& pairs, const DeviceFacts& facts, Stream stream);

}  // namespace hgemm::sm90_wgmma
