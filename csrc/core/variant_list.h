// What the families' lists of variants (kernels/*/variants.cc) are written with.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <tuple>

#include "core/problem.h"

namespace hgemm {

constexpr uint32_t kHalfTypes = 1u << static_cast<int>(DType::kF16) | 1u << static_cast<int>(DType::kBF16);
constexpr uint32_t kFloat32 = 1u << static_cast<int>(DType::kF32);
// Compute capabilities.
constexpr int kAmpere = 80, kHopper = 90;
constexpr int kAnyNewer = 9999;

/// False where HGEMM_CUDA_ARCHS=none: the build compiles no .cu file then, and no launcher is defined.
#ifdef HGEMM_NO_DEVICE_CODE
constexpr bool kHasDeviceCode = false;
#else
constexpr bool kHasDeviceCode = true;
#endif
/// False where HGEMM_CUDA_ARCHS leaves out 90a: kernels for it are then reported as not built.
#ifdef HGEMM_NO_SM90A
constexpr bool kHasSm90aCode = false;
#else
constexpr bool kHasSm90aCode = true;
#endif

inline int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

/// False, with the reason if it is wanted: how Variant::eligible refuses.
template <class... Values>
bool refuse(Reason* why, const char* format, Values... values) {
  if (why != nullptr) std::snprintf(why->text, sizeof(why->text), format, values...);
  return false;
}

/// Refuses every problem where the build has no code for sm_90a.
inline bool is_built_for_sm90a(Reason* why) {
  return kHasSm90aCode || refuse(why, "%s", "not built: HGEMM_CUDA_ARCHS left out 90a");
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

/// A variant's name, which the compiler puts together out of text and numbers.
struct Name {
  char text[64] = {};
  int length = 0;

  constexpr void append(const char* part) {
    for (; *part != '\0'; ++part) text[length++] = *part;
    text[length] = '\0';
  }
  constexpr void append(int number) {
    if (number >= 10) append(number / 10);
    text[length++] = static_cast<char>('0' + number % 10);
    text[length] = '\0';
  }
};

template <class... Parts>
constexpr Name name_of(Parts... parts) {
  Name name;
  (name.append(parts), ...);
  return name;
}

/// Calls a launcher of a .cu file, or says that the build has none. `kLauncher` is a template argument so that a build
/// without device code does not refer to it.
template <auto kLauncher, class... Arguments>
Status call(const Arguments&... arguments) {
  if constexpr (kHasDeviceCode) {
    return kLauncher(arguments...);
  } else {
    constexpr Status kNoKernelImageForDevice = 209;  // cudaErrorNoKernelImageForDevice
    return kNoKernelImageForDevice;
  }
}

/// The functions of a Variant whose kernel needs no workspace, made of its family's for one kernel: `kLine` is the
/// kernel's line of the family's list. They are compile-time arguments because Variant holds plain function pointers.
template <const auto& kLine, auto kEligible, auto kPredictUs, auto kSchedule, auto kF16, auto kBF16>
struct ScheduledFunctions {
  static bool eligible(const Problem& p, const DeviceFacts&, Reason* why) { return kEligible(p, kLine, why); }
  static size_t workspace(const Problem&, const DeviceFacts&) { return 0; }
  static double predict_us(const Problem& p, const DeviceFacts& facts) { return kPredictUs(p, facts, kLine); }
  static Status launch(const Problem& p, const DeviceFacts& facts, void*, Stream stream) {
    const auto s = kSchedule(p, facts, kLine);
    return p.dtype == DType::kF16 ? call<kF16>(p, s, stream) : call<kBF16>(p, s, stream);
  }
};

/// The same for a kernel whose blocks leave partial sums of slices of K in the workspace: slices x tiles x tile_rows x
/// line.tile.bn floats for each batch. `kBF16` is the launcher for bfloat16, `kLaunch` that for the other types.
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
    const auto s = kSchedule(p, facts, kLine);
    return p.dtype == DType::kBF16 ? call<kBF16>(p, s, workspace, stream) : call<kLaunch>(p, s, workspace, stream);
  }
};

/// A variant that runs on every architecture and adds up in float32. What differs is set by name afterwards.
template <class Functions, class Line>
constexpr Variant variant_of(const Name& name, Family family, uint32_t dtypes, const Line& line) {
  Variant v{};
  v.name = name.text;
  v.family = family;
  v.arithmetic = Arithmetic::kAccumulateF32;
  v.min_cc = kAmpere;
  v.max_cc = kAnyNewer;
  v.dtypes = dtypes;
  v.tile = line.tile;
  v.smem_bytes = line.smem_bytes;
  v.eligible = Functions::eligible;
  v.workspace = Functions::workspace;
  v.predict_us = Functions::predict_us;
  v.launch = Functions::launch;
  return v;
}

template <size_t... kCounts>
constexpr auto concatenate(const std::array<Variant, kCounts>&... parts) {
  std::array<Variant, (kCounts + ...)> all{};
  size_t next = 0;
  const auto append = [&all, &next](const auto& part) {
    for (const Variant& v : part) all[next++] = v;
  };
  (append(parts), ...);
  return all;
}

/// An array of a variant that there is, or an empty one.
template <bool kExists>
constexpr std::array<Variant, kExists> array_if(const Variant& variant) {
  std::array<Variant, kExists> out{};
  for (Variant& v : out) v = variant;
  return out;
}

/// The variants of a family: an array from `variants_of` for each kernel of the family's list, one after the other.
template <class... Kernels, class VariantsOf>
constexpr auto variants_of_list(const std::tuple<Kernels...>& list, VariantsOf variants_of) {
  return std::apply([&](const auto&... kernels) { return concatenate(variants_of(kernels)...); }, list);
}

}  // namespace hgemm
