// What the list of sm90_wgmma kernels (variants.cc) and their CUDA side share: configurations and launchers.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>

#include "core/host_device.h"
#include "core/problem.h"

namespace hgemm::sm90_wgmma {

/// How the two consumer warpgroups share the work.
enum class Consumers { kPingpong, kCooperative };
constexpr Consumers PINGPONG = Consumers::kPingpong, COOPERATIVE = Consumers::kCooperative;  // in list.inc

/// The shape of a block and of its cluster: one line of list.inc.
template <Consumers kConsumers_, int BM_, int BN_, int STAGES_, int CM_, int CN_, int CK_>
struct Config {
  static constexpr Consumers kConsumers = kConsumers_;
  static constexpr bool kPingpong = kConsumers == Consumers::kPingpong;
  static constexpr int BM = BM_, BN = BN_, BK = 64, STAGES = STAGES_;
  static constexpr int CM = CM_, CN = CN_, CK = CK_;  // blocks of a cluster along M, N and K
  static constexpr int kSharers = CM * CN;            // each loads a part of the operand tile that all of them need
  static constexpr int kCluster = CM * CN * CK;
  static constexpr int WM = kPingpong ? BM : BM / 2;                // rows of a consumer warpgroup
  static constexpr int kHalves = 2 * (WM / 64) * ((BN + 63) / 64);  // of its result: 32 columns of 64 rows
  static constexpr bool kCopies = WM / 64 * BN / 2 <= 192;          // D that TMA cannot write: else too few registers
  // Every epilogue. It is a third of a kernel's time to compile: tiles of whole pieces of 64 columns have it.
  static constexpr bool kStoresAny = kCopies && BN % 64 == 0;
  static constexpr bool kDefers = !kPingpong && CK == 1;  // stores of a tile to the main loop of the next
  static constexpr bool kStreamK = false, kEdged = false;
  static constexpr int kEdge = 128;         // columns of Edged's other tiles
  static constexpr int kThreads = 3 * 128;  // two consumer warpgroups and the producer's
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
  static constexpr bool kTakesMnMajorB = BN % 16 == 0 && STAGES * (kStageBytesA + kRoundedBytesB) + kSumBytes +
                                                                 kBarrierBytes + (CK > 1 ? 0 : kStagingBytes) <=
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
  static_assert(kSharers <= 2, "larger clusters leave SMs idle: on the H200 fewer than 32 of four find room");
  static_assert(CK == 1 || (kSharers == 1 && !kPingpong), "split K: a whole cluster for one tile");
  static_assert(kHalves % CK == 0, "split K: every block has as much to finish");
  static_assert(CK == 1 || kSumBytes >= kStagingBytes);
};

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

/// How the clusters of such a launch share C, counted in units (the tiles of a cluster).
struct Edges {
  uint32_t clusters;
  uint32_t columns;        // whole units in a row of units; 0: there is nothing to gain
  uint32_t turns, longer;  // the first `longer` clusters do that many whole units, the others one less and an edge
  uint32_t rows, edges;    // of edges in a column, and all of them
};

/// Whether a cluster's turn is a whole unit: the `turn * clusters + cluster`-th.
HGEMM_HOST_DEVICE inline bool is_whole(const Edges& e, uint32_t cluster, uint32_t turn) {
  return turn + (cluster < e.longer ? 0 : 1) < e.turns;
}
/// If not: the edge that a cluster has in its last turn, one of those behind the last if it has none.
HGEMM_HOST_DEVICE inline uint32_t edge_of(const Edges& e, uint32_t cluster) {
  return cluster - e.longer;
}
HGEMM_HOST_DEVICE inline bool has_turn(const Edges& e, uint32_t cluster, uint32_t turn) {
  return is_whole(e, cluster, turn) || (turn < e.turns && edge_of(e, cluster) < e.edges);
}

/// For units of `bn` columns against whole ones of `width`.
inline Edges edges_of(int64_t units_m, int64_t n, int64_t clusters, int64_t bn, int64_t edge, int64_t width = 256) {
  const auto count = [](int64_t x) { return static_cast<uint32_t>(x); };
  const auto ceil_div = [](int64_t a, int64_t b) { return (a + b - 1) / b; };
  const int64_t rows = ceil_div(units_m, 2);
  int64_t least = ceil_div(units_m * ceil_div(n, width), clusters) * width;
  Edges best{};
  for (int64_t columns = n / bn; columns > std::max<int64_t>(n / bn - 2, 0); --columns) {
    const int64_t whole = units_m * columns, turns = ceil_div(whole, clusters);
    const int64_t longer = whole - (turns - 1) * clusters, edges = rows * ceil_div(n - columns * bn, edge);
    const int64_t time = (turns - 1) * bn + std::max(bn, edges > 0 ? 2 * edge : 0);
    if (edges > clusters - longer || turns < 2 || time >= least) continue;
    best = {count(clusters), count(columns), count(turns), count(longer), count(rows), count(edges)};
    least = time;
  }
  return best;
}

/// A cluster begins and ends a share of a tile at least this many steps from the tile's ends, or there: to write and
/// add partial sums takes as long as a few steps. At least the steps under which a cooperative tile is stored.
constexpr int kSplitSteps = 8;

/// A Config whose kernel splits some tiles along K between clusters (stream-K).
template <class Base>
struct StreamK : Base {
  static constexpr bool kStreamK = true;
  static constexpr int kReaders = Base::kPingpong ? 128 : 256;  // consumer threads of one tile
  static constexpr int kHalfBytes = kReaders * 16 * 4;          // of partial sums: a half of each of their warps
  static constexpr int kPartialBytes = Base::kHalves * kHalfBytes;
  // Partial sums come in through the ring, as many halves a stage as find room.
  static constexpr int kStageHalves = std::min(Base::kStageBytes / kHalfBytes, Base::kHalves);
  static constexpr int kPartialStages = (Base::kHalves + kStageHalves - 1) / kStageHalves;
  static constexpr int kSmemBytes = Base::kSmemBytes + 16;
  static_assert(kSmemBytes <= Base::kMaxSmemBytes);
  static_assert(Base::CK == 1 && Base::BN % 64 == 0, "no half overlaps another");
  static_assert(!Base::kDefers || Base::kHalves <= kSplitSteps);
};

/// How the clusters of a stream-K launch share the work, counted in units (the tiles of a cluster) and steps of K.
struct Split {
  uint32_t clusters;
  uint32_t units;         // the first ones are split: of 0, nothing is
  uint32_t waves;         // whole units that every cluster does after its share of the split ones
  uint32_t share, extra;  // steps of a share; that many clusters do one more
};

/// What does not fill a wave is shared out, with one of the whole waves if there is one: no tile then has more than two
/// parts, and all clusters are equally late.
inline Split split_of(int64_t units, int64_t steps, int64_t max_clusters) {
  const int64_t clusters = std::max<int64_t>(max_clusters, 1);
  const int64_t rest = units % clusters, waves = units / clusters;
  const int64_t split = waves > 0 ? rest + clusters : rest;
  const auto count = [](int64_t n) { return static_cast<uint32_t>(n); };
  const bool can = rest > 0 && steps >= 2 * kSplitSteps && split * steps < int64_t{1} << 32;
  const int64_t sharers = can ? std::min(clusters, split * steps / kSplitSteps) : 0;
  if (sharers <= rest) return {count(std::min(units, clusters)), 0, 0, 0, 0};
  return {count(sharers), count(split), count(std::max<int64_t>(waves - 1, 0)), count(split * steps / sharers),
          count(split * steps % sharers)};
}

/// A cluster's share of the split units, in steps from the first unit's first one on.
struct Share {
  uint32_t first, last;  // half-open
  uint32_t pieces;       // units of which it has some
  uint32_t partials;     // 1 where it does not reach the end of the last of them, else 0
};

/// What a cluster does of a unit in one turn.
struct Piece {
  uint32_t unit;
  uint32_t k_first, k_last;  // steps, half-open
  uint32_t helpers;          // clusters right before this one that leave partial sums of the unit to it
};

/// Where a cluster's share begins.
HGEMM_HOST_DEVICE inline uint32_t border_of(const Split& split, uint32_t steps, uint32_t cluster) {
  const uint32_t at = cluster * split.share + (cluster < split.extra ? cluster : split.extra);
  const uint32_t in_unit = at % steps;
  if (in_unit < kSplitSteps) return at - in_unit;
  return in_unit + kSplitSteps > steps ? at - in_unit + steps : at;
}

HGEMM_HOST_DEVICE inline Share share_of(const Split& split, uint32_t steps, uint32_t cluster) {
  const uint32_t first = border_of(split, steps, cluster), last = border_of(split, steps, cluster + 1);
  if (first >= last) return {first, last, 0, 0};
  return {first, last, (last - 1) / steps - first / steps + 1, last % steps > 0};
}

/// A cluster's n-th turn in its share, n < pieces: it goes from its last unit to its first.
HGEMM_HOST_DEVICE inline Piece piece_of(const Split& split, uint32_t steps, uint32_t cluster, uint32_t first,
                                        uint32_t last, uint32_t turn) {
  const uint32_t unit = (last - 1) / steps - turn, begin = unit * steps, end = begin + steps;
  Piece piece{unit, (first > begin ? first : begin) - begin, (last < end ? last : end) - begin, 0};
  if (first > begin && last >= end) {
    do ++piece.helpers;
    while (border_of(split, steps, cluster - piece.helpers) > begin);
  }
  return piece;
}

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

/// Enqueues the GEMM. `workspace`: stream-K's partial sums and flags; the others need none.
#define SM90_WGMMA_LAUNCHERS(ID)                                                              \
  HGEMM_IN_CUDA(launch_f16_##ID(const Problem&, const DeviceFacts&, void* workspace, Stream)) \
  HGEMM_IN_CUDA(launch_bf16_##ID(const Problem&, const DeviceFacts&, void* workspace, Stream))
#define SM90_WGMMA(SCHEDULE, BM, BN, STAGES, CM, CN, CK, RATE) \
  SM90_WGMMA_LAUNCHERS(SCHEDULE##_##BM##x##BN##x64_c##CM##x##CN##x##CK)
#define SM90_WGMMA_SWAPPED(SCHEDULE, BM, BN, STAGES, CM, CN, CK, RATE) \
  SM90_WGMMA_LAUNCHERS(swapped_##SCHEDULE##_##BM##x##BN##x64_c##CM##x##CN##x##CK)
#define SM90_WGMMA_STREAM_K(SCHEDULE, BM, BN, STAGES, CM, CN, RATE) \
  SM90_WGMMA_LAUNCHERS(streamk_##SCHEDULE##_##BM##x##BN##x64_c##CM##x##CN##x1)
#define SM90_WGMMA_EDGED(SCHEDULE, BM, BN, STAGES, CM, CN, RATE)             \
  SM90_WGMMA_LAUNCHERS(edged_##SCHEDULE##_##BM##x##BN##x64_c##CM##x##CN##x1) \
  SM90_WGMMA_LAUNCHERS(edged_swapped_##SCHEDULE##_##BM##x##BN##x64_c##CM##x##CN##x1)
#include "kernels/sm90_wgmma/list.inc"
#undef SM90_WGMMA_LAUNCHERS

}  // namespace hgemm::sm90_wgmma
