// What the list of sm90_wgmma kernels (sm90_wgmma.cc) and their CUDA side share: configurations and launchers.
#pragma once

#include <cstdint>
#include <utility>

#include "core/problem.h"

namespace hgemm::sm90_wgmma {

/// How the two consumer warpgroups share the work.
enum class Consumers { kPingpong, kCooperative };

/// The shape of a block and of its cluster: one line of configs_sm90.inc.
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
  static constexpr bool kTakesMnMajorB = BN % 32 == 0;         // else its tiles begin anywhere in a line of 128 bytes
  static constexpr bool kStoresAny = WM / 64 * BN / 2 <= 192;  // else too few registers for what needs more than TMA
  static constexpr bool kDefers = !kPingpong && CK == 1;       // stores of a tile to the main loop of the next
  static constexpr int kThreads = 3 * 128;                     // two consumer warpgroups and the producer's
  static constexpr int kStageBytesA = BM * BK * 2;
  static constexpr int kStageBytesB = (BN + 63) / 64 * 64 * BK * 2;  // an MN-major tile is loaded 64 columns at a time
  static constexpr int kStageBytes = kStageBytesA + kStageBytesB;
  static constexpr int kBarrierBytes = 2 * STAGES * 8;
  static constexpr int kStagingWarpBytes = 16 * 128;  // 16 rows of a warp on their way out, 128 bytes of each
  static constexpr int kStagingBytes = 8 * kStagingWarpBytes;
  static constexpr int kMaxSmemBytes = 232448;
  static constexpr int kStagingBuffers =
      STAGES * kStageBytes + 2 * kStagingBytes + kBarrierBytes <= kMaxSmemBytes ? 2 : 1;
  static constexpr int kSmemBytes = STAGES * kStageBytes + kStagingBuffers * kStagingBytes + kBarrierBytes;
  static_assert(WM % 64 == 0 && BN % 8 == 0 && BN >= 64 && BN <= 256);
  static_assert(WM / 64 * BN / 2 <= 208, "accumulators must leave registers for the rest");
  static_assert(kSmemBytes <= kMaxSmemBytes);
  static_assert(kSharers <= 2, "larger clusters leave SMs idle: on the H200 fewer than 32 of four find room");
  static_assert(CK == 1 || (kSharers == 1 && !kPingpong), "split K: a whole cluster for one tile");
  static_assert(CK == 1 || STAGES * kStageBytes >= BM * BN * 4, "split K: the ring holds the sums of a tile");
};

/// Whether TMA can read an operand where it lies: rows on 16 bytes and not overlapping.
inline bool is_tma_a(const Problem& p) {
  return alignment_a(p) == 16 && p.lda() >= (p.a_major() == Major::kK ? p.k : p.m);
}
inline bool is_tma_b(const Problem& p) {
  return alignment_b(p) == 16 && p.ldb() >= (p.b_major() == Major::kK ? p.k : p.n);
}

/// What the epilogue does. All but the last write D by TMA.
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
  if (has_c || is_odd_bias || p.pre_activation != nullptr || !stores_by_tma(p)) return Finish::kAny;
  if (p.act == Activation::kNone && p.bias == nullptr) return Finish::kScale;
  if (p.act == Activation::kNone || p.act == Activation::kRelu) return Finish::kBiasRelu;
  return p.a_major() == Major::kK && p.b_major() == Major::kK ? Finish::kBiasActivation : Finish::kAny;
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

/// Enqueues the GEMM.
#define SM90_WGMMA(SCHEDULE, BM, BN, STAGES, CM, CN, CK, RATE)                                                     \
  Status launch_f16_##SCHEDULE##_##BM##x##BN##x64_c##CM##x##CN##x##CK(const Problem&, const DeviceFacts&, Stream); \
  Status launch_bf16_##SCHEDULE##_##BM##x##BN##x64_c##CM##x##CN##x##CK(const Problem&, const DeviceFacts&, Stream);
#define SM90_WGMMA_SWAPPED(SCHEDULE, BM, BN, STAGES, CM, CN, CK, RATE)                                             \
  Status launch_f16_swapped_##SCHEDULE##_##BM##x##BN##x64_c##CM##x##CN##x##CK(const Problem&, const DeviceFacts&,  \
                                                                              Stream);                             \
  Status launch_bf16_swapped_##SCHEDULE##_##BM##x##BN##x64_c##CM##x##CN##x##CK(const Problem&, const DeviceFacts&, \
                                                                               Stream);
#include "kernels/configs_sm90.inc"

}  // namespace hgemm::sm90_wgmma
