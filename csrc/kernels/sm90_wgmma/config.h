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
  // Blocks with other tiles of C, of which a row or column loads a tile of an operand together.
  static constexpr int kSharers = CM * CN;
  static constexpr int kPeers = CM + CN - 1;  // blocks that need what one of them loads, itself included
  static constexpr int kCluster = CM * CN * CK;
  static constexpr int WM = kPingpong ? BM : BM / 2;                // rows of a consumer warpgroup
  static constexpr int kHalves = 2 * (WM / 64) * ((BN + 63) / 64);  // of its result: 32 columns of 64 rows
  static constexpr bool kCopies = WM / 64 * BN / 2 <= 192;          // D that TMA cannot write: else too few registers
  // Every epilogue. It is a third of a kernel's time to compile, and of its bytes: tiles of whole pieces of 64 columns
  // have it, but not in clusters of four.
  static constexpr bool kStoresAny = kCopies && BN % 64 == 0 && kSharers <= 2;
  static constexpr bool kDefers = !kPingpong && CK == 1;  // stores of a tile to the main loop of the next
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
  // Split K: a block finishes some of its tile's halves; what the other blocks send of their sums has its own place.
  static constexpr int kOwnHalves = kHalves / CK;
  static constexpr int kHalfSumBytes = 2 * 128 * 64;
  static constexpr int kSumBytes = (CK - 1) * kOwnHalves * kHalfSumBytes;
  static constexpr int kBarrierBytes = (2 * STAGES + (CK > 1 ? 1 : 0)) * 8;
  static constexpr int kStagingWarpBytes = 16 * 128;  // 16 rows of a warp on their way out, 128 bytes of each
  static constexpr int kStagingBytes = 8 * kStagingWarpBytes;
  static constexpr int kMaxSmemBytes = 232448;
  // An MN-major B comes 64 columns at a time: a ring for K-major tiles may be deeper than there is room for those. Nor
  // may its tiles begin inside of 32-byte sectors.
  static constexpr int kRoundedBytesB = (BN + 63) / 64 * 64 * BK * 2;
  static constexpr bool kTakesMnMajorB =
      !kSwapped && BN % 16 == 0 &&
      STAGES * (kStageBytesA + kRoundedBytesB) + kSumBytes + kBarrierBytes + (CK > 1 ? 0 : kStagingBytes) <=
          kMaxSmemBytes;
  static constexpr int kStageBytesB = kTakesMnMajorB ? kRoundedBytesB : BN * BK * 2;
  static constexpr int kStageBytes = kStageBytesA + kStageBytesB;
  static constexpr int kRestBytes = STAGES * kStageBytes + kSumBytes + kBarrierBytes;
  // Split K: results go out through the place of the sums, once those are added.
  static constexpr int kStagingBuffers = CK > 1 ? 0 : kRestBytes + 2 * kStagingBytes <= kMaxSmemBytes ? 2 : 1;
  static constexpr int kSmemBytes = kRestBytes + kStagingBuffers * kStagingBytes;
  static_assert(WM % 64 == 0 && BN % 8 == 0 && BN >= 64 && BN <= 256);
  static_assert(WM / 64 * BN / 2 <= 208, "accumulators must leave registers for the rest");
  static_assert(kSmemBytes <= kMaxSmemBytes);
  static_assert(kCluster <= 8, "the largest portable cluster");
  static_assert(CK == 1 || (kSharers == 1 && !kPingpong), "split K: a whole cluster for one tile");
  static_assert(kHalves % CK == 0, "split K: every block has as much to finish");
  static_assert(CK == 1 || kSumBytes >= kStagingBytes);
};

/// A Config whose kernel computes D^T = B^T A^T, for row-major A. BN then counts rows of A, of which a K-major tile may
/// have as many as it likes; a tile of an MN-major B begins on a line only where BN is a multiple of 64.
template <Consumers kConsumers, int BM, int BN, int STAGES, int CM, int CN, int CK>
using SwapAB = Config<kConsumers, BM, BN, STAGES, CM, CN, CK, true>;

/// A Config whose kernel covers the last columns of C by tiles of another shape, twice as high and kEdge columns wide:
/// one for each cluster that the last wave would leave without work. 4096 x 4096 in 256 clusters' tiles of 256 x 256
/// are four waves of 66 clusters, all but 3 %; in 256 of 256 x 248 and eight of 512 x 128 they are four waves of tiles
/// that are 3 % smaller.
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
  // Partial sums come in through the ring, as many halves a stage as find room.
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

/// What the epilogue does. All but the last write D in 16 bits: by TMA, or, the first two, in copies where that cannot.
enum class Finish : int32_t {
  kScale,           // D = alpha * A @ B
  kBiasRelu,        // D = relu(alpha * A @ B + bias), without either or both
  kBiasActivation,  // the same with another activation, where A and B are K-major: linear layers
  kAny,
};

/// TMA clips stores to 16 bytes: it would write past the end of a ragged row (ptx/tma.cuh).
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
