// What the lists of kernels (kernels/*.cc) are written with.
#pragma once

#include <cstdint>
#include <cstdio>

#include "core/problem.h"

namespace hgemm {

constexpr uint32_t kHalfTypes = 1u << static_cast<int>(DType::kF16) | 1u << static_cast<int>(DType::kBF16);
constexpr uint32_t kFloat32 = 1u << static_cast<int>(DType::kF32);
constexpr int kAnyNewer = 9999;  // compute capability

inline int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

/// False, with the reason if it is wanted: how Variant::eligible refuses.
template <class... Values>
bool refuse(Reason* why, const char* format, Values... values) {
  if (why != nullptr) std::snprintf(why->text, sizeof(why->text), format, values...);
  return false;
}

/// Refuses what kernels for a short side of at most `cols` do not take: larger extents, a K above 2^log2_k, and more
/// batches than blockIdx.z counts.
inline bool has_short_side(const Problem& p, int cols, int log2_k, Reason* why) {
  constexpr int64_t kMaxExtent = int64_t{1} << 30, kMaxBatches = 65535;
  const auto m = static_cast<long long>(p.m), n = static_cast<long long>(p.n), k = static_cast<long long>(p.k);
  if (m > kMaxExtent || n > kMaxExtent || k > int64_t{1} << log2_k) {
    return refuse(why, "M and N must be at most 2^30, K 2^%d, got %lld, %lld and %lld", log2_k, m, n, k);
  }
  if (m > cols && n > cols) return refuse(why, "M or N must be at most %d, got %lld and %lld", cols, m, n);
  if (p.batches() > kMaxBatches) {
    return refuse(why, "at most %lld batches, got %lld", static_cast<long long>(kMaxBatches),
                  static_cast<long long>(p.batches()));
  }
  return true;
}

/// The functions of a Variant without workspace, from those of its family, for one line of the family's list: arguments
/// known to the compiler, so that they need no closure.
template <const auto& kLine, auto kEligible, auto kPredictUs, auto kSchedule, auto kF16, auto kBF16>
struct ScheduledFunctions {
  static bool eligible(const Problem& p, const DeviceFacts&, Reason* why) { return kEligible(p, kLine, why); }
  static size_t workspace(const Problem&, const DeviceFacts&) { return 0; }
  static double predict_us(const Problem& p, const DeviceFacts& facts) { return kPredictUs(p, facts, kLine); }
  static Status launch(const Problem& p, const DeviceFacts& facts, void*, Stream stream) {
    return (p.dtype == DType::kF16 ? kF16 : kBF16)(p, kSchedule(p, facts, kLine), stream);
  }
};

/// The functions of a Variant whose blocks leave sums of slices of K in the workspace: slices x tiles x tile_rows x
/// line.tile.bn floats for each batch. kBF16: where the elements are halves.
template <const auto& kLine, auto kEligible, auto kPredictUs, auto kSchedule, auto kLaunch, auto kBF16 = kLaunch>
struct SlicedFunctions {
  static bool eligible(const Problem& p, const DeviceFacts&, Reason* why) { return kEligible(p, kLine, why); }
  static size_t workspace(const Problem& p, const DeviceFacts& facts) {
    const auto s = kSchedule(p, facts, kLine);
    if (s.slices == 1) return 0;
    return sizeof(float) * s.slices * static_cast<size_t>(s.tiles * p.batches()) * s.tile_rows * kLine.tile.bn;
  }
  static double predict_us(const Problem& p, const DeviceFacts& facts) { return kPredictUs(p, facts, kLine); }
  static Status launch(const Problem& p, const DeviceFacts& facts, void* workspace, Stream stream) {
    return (p.dtype == DType::kBF16 ? kBF16 : kLaunch)(p, kSchedule(p, facts, kLine), workspace, stream);
  }
};

/// A Variant of functions and of one line of a family's list.
template <class Functions, class Line>
constexpr Variant variant_of(const char* name, Family family, Numerics numerics, uint32_t dtypes, Sums sums, int min_cc,
                             int max_cc, const Line& line, bool splits_k = false, const Cut& cut = {}) {
  return {name,
          family,
          numerics,
          min_cc,
          max_cc,
          dtypes,
          line.tile,
          line.smem_bytes,
          splits_k,
          Functions::eligible,
          Functions::workspace,
          Functions::predict_us,
          Functions::launch,
          nullptr,
          cut,
          sums};
}

/// One that takes both half types and accumulates in float32.
template <class Functions, class Line>
constexpr Variant half_variant(const char* name, Family family, Sums sums, int min_cc, int max_cc, const Line& line,
                               bool splits_k = false, const Cut& cut = {}) {
  return variant_of<Functions>(name, family, Numerics::kAccumulateF32, kHalfTypes, sums, min_cc, max_cc, line, splits_k,
                               cut);
}

/// One that takes float32 alone and adds it up in float32, on CUDA cores of any architecture.
template <class Functions, class Line>
constexpr Variant float_variant(const char* name, Family family, const Line& line) {
  return variant_of<Functions>(name, family, Numerics::kAccumulateF32, kFloat32, Sums::kVaries, 80, kAnyNewer, line);
}

}  // namespace hgemm
