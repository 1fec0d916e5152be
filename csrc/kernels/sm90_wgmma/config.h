// What the host side of sm90_wgmma (list.h, variants.cc) and its CUDA side share: configurations and the launcher.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>

#include "core/problem.h"
#include "kernels/sm90_wgmma/stream_k.h"

namespace hgemm::sm90_wgmma {

/// How the two consumer warpgroups share the work.
enum class Consumers {
  kPingpong,     // a whole tile each: one is in its epilogue while the other multiplies
  kCooperative,  // half of the rows of one tile each
};

/// What a kernel is made for: block tile, ring depth, cluster. `kSwapped_`: SwapAB.
template <Consumers kConsumers_, int BM_, int BN_, int STAGES_, int CM_, int CN_, int CK_, bool kSwapped_ = false>
struct Config {
  static constexpr Consumers kConsumers = kConsumers_;
  static constexpr bool kPingpong = kConsumers == Consumers::kPingpong;
  static constexpr int BM = BM_, BN = BN_, BK = 64, STAGES = STAGES_;
  static constexpr int CM = CM_, CN = CN_, CK = CK_;  // blocks of a cluster along M, N and K
  // Blocks that compute different tiles of C. Those in one row of the cluster share tiles of A and load them together;
  // those in one column share tiles of B.
  static constexpr int kSharers = CM * CN;
  static constexpr int kPeers = CM + CN - 1;  // blocks that need what one of them loads, itself included
  static constexpr int kCluster = CM * CN * CK;
  static constexpr int WM = kPingpong ? BM : BM / 2;  // rows of a consumer warpgroup
  // Halves of epilogue tiles in a consumer warpgroup's result: an epilogue tile is 64 x 64, a half has 32 columns.
  static constexpr int kHalves = 2 * (WM / 64) * ((BN + 63) / 64);
  // Whether warps can write a D that TMA cannot write: larger accumulators leave too few registers for that.
  static constexpr bool kCopies = WM / 64 * BN / 2 <= 192;
  // Whether the kernel has the general epilogue (Finish::kAny). It takes a third of a kernel's compile time and of its
  // bytes, so only tiles that are a multiple of 64 columns wide have it, and clusters of four do not.
  static constexpr bool kStoresAny = kCopies && BN % 64 == 0 && kSharers <= 2;
  // Whether the stores of a tile are deferred into the main loop of the next one.
  static constexpr bool kDefers = !kPingpong && CK == 1;
  static constexpr bool kStreamK = false, kEdged = false, kSwapped = kSwapped_;
  static constexpr int kEdge = 128;  // columns of Edged's other tiles
  static constexpr int kWarpgroupThreads = 128;
  static constexpr int kConsumerThreads = 2 * kWarpgroupThreads;
  static constexpr int kThreads = kConsumerThreads + kWarpgroupThreads;                  // and the producer's
  static constexpr int kTileThreads = kPingpong ? kWarpgroupThreads : kConsumerThreads;  // that share a tile
  // Arrivals that complete a phase of the mbarriers (the table in kernel.cuh).
  static constexpr int kFullArrivals = 1;                            // the producer thread's, with the bytes to come
  static constexpr int kEmptyArrivals = kTileThreads / 32 * kPeers;  // a warp's that has read the stage, of each peer
  static constexpr int kSummedArrivals = 1;
  static constexpr int kStageBytesA = BM * BK * 2;
  // Split K: each block of the cluster finishes kOwnHalves of the tile. The sums that the other blocks send for these
  // have a buffer of their own.
  static constexpr int kOwnHalves = kHalves / CK;
  static constexpr int kHalfSumBytes = 2 * 128 * 64;
  static constexpr int kSumBytes = (CK - 1) * kOwnHalves * kHalfSumBytes;
  static constexpr int kBarrierBytes = (2 * STAGES + (CK > 1 ? 1 : 0)) * 8;
  static constexpr int kStagingWarpBytes = 16 * 128;  // staging of a warp's results: 16 rows of 128 bytes
  static constexpr int kStagingBytes = 8 * kStagingWarpBytes;
  static constexpr int kMaxSmemBytes = 232448;
  // TMA loads an MN-major B in boxes of 64 columns, so its stages are rounded up to 64 columns and may not fit the
  // ring. Its tiles must also start at a multiple of 32 bytes.
  static constexpr int kRoundedBytesB = (BN + 63) / 64 * 64 * BK * 2;
  static constexpr bool kTakesMnMajorB =
      !kSwapped && BN % 16 == 0 &&
      STAGES * (kStageBytesA + kRoundedBytesB) + kSumBytes + kBarrierBytes + (CK > 1 ? 0 : kStagingBytes) <=
          kMaxSmemBytes;
  static constexpr int kStageBytesB = kTakesMnMajorB ? kRoundedBytesB : BN * BK * 2;
  static constexpr int kStageBytes = kStageBytesA + kStageBytesB;
  static constexpr int kRestBytes = STAGES * kStageBytes + kSumBytes + kBarrierBytes;
  // Split K stages results in the buffer of the sums, once these have been added.
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

/// A Config whose kernel computes D^T = B^T A^T, for row-major A. BN then counts rows of A, of which a K-major tile may
/// have as many as it likes; a tile of an MN-major B begins on a line only where BN is a multiple of 64.
template <Consumers kConsumers, int BM, int BN, int STAGES, int CM, int CN, int CK>
using SwapAB = Config<kConsumers, BM, BN, STAGES, CM, CN, CK, true>;

/// A Config whose kernel covers the last columns of C, the residue, by tiles of another shape: twice as high and kEdge
/// columns wide, one for each cluster that would have no tile in the last wave. Example: 4096 x 4096 in 256 clusters'
/// tiles of 256 x 256 takes four waves of 66 clusters, almost exactly. In 256 tiles of 256 x 248 and eight of 512 x 128
/// it takes four waves as well, of tiles that are 3 % smaller.
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

/// A Config whose kernel splits some tiles along K between clusters (stream-K).
template <class Base>
struct StreamK : Base {
  static constexpr bool kStreamK = true;
  static constexpr int kReaders = Base::kTileThreads;
  // Threads that meet once partial sums are written: those of the tile and the warp that announces them.
  static constexpr int kPartialsThreads = kReaders + 32;
  static constexpr int kHalfBytes = kReaders * 16 * 4;  // of partial sums: a half of each of their warps
  static constexpr int kPartialBytes = Base::kHalves * kHalfBytes;
  // Partial sums are loaded through the ring, as many halves in a stage as fit.
  static constexpr int kStageHalves = std::min(Base::kStageBytes / kHalfBytes, Base::kHalves);
  static constexpr int kPartialStages = (Base::kHalves + kStageHalves - 1) / kStageHalves;
  static constexpr int kSmemBytes = Base::kSmemBytes + 16;
  static_assert(kSmemBytes <= Base::kMaxSmemBytes);
  static_assert(Base::CK == 1 && Base::BN % 64 == 0, "no half overlaps another");
  static_assert(!Base::kDefers || Base::kHalves <= kSplitSteps);
};

/// Whether TMA can read an operand where it lies: rows on 16 bytes and not overlapping.
inline bool is_tma_a(const Problem& p) {
  return alignment_a(p) == 16 && p.lda() >= (p.a_major() == Major::kK ? p.k : p.m);
}
inline bool is_tma_b(const Problem& p) {
  return alignment_b(p) == 16 && p.ldb() >= (p.b_major() == Major::kK ? p.k : p.n);
}

/// What the epilogue does. All but kAny write D in 16 bits, by TMA; kScale and kBiasRelu also where TMA cannot write D.
enum class Finish : int32_t {
  kScale,           // D = alpha * A @ B
  kBiasRelu,        // D = relu(alpha * A @ B + bias), without either or both
  kBiasActivation,  // the same with another activation, where A and B are K-major: linear layers
  kAny,
};

/// TMA stores whole 16-byte chunks, so it would write past the end of a row that is not a multiple of them
/// (ptx/tma.cuh).
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

/// D^T = B^T A^T, D still in its place.
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

/// Enqueues the GEMM. `workspace` holds stream-K's partial sums and flags; the other kernels need none. launch.cuh
/// defines it, instances.cu instantiates it for each kernel of list.h.
template <class Config, DType kDType>
Status launch(const Problem& p, const DeviceFacts& facts, void* workspace, Stream stream);

}  // namespace hgemm::sm90_wgmma
