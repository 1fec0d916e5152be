// Tools that every family uses to build its list of variants (kernels/<family>/variants.cc) at compile time.
//
// A family's variants.cc turns each kernel of its list.h into one Variant or more:
//  - its `Line` holds the kernel's constants as plain values: tile, shared memory, measured rates;
//  - `eligible`, `predict_us` and, where a launch has choices, `schedule` take a Problem, DeviceFacts and a Line;
//  - ScheduledFunctions, SlicedFunctions or a `Functions` of the family's own binds them to one kernel, since Variant
//    holds plain function pointers;
//  - variant_of() fills the Variant, and variants_of_list() makes one array of them all.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <tuple>

#include "core/ceil_div.h"
#include "core/problem.h"

namespace hgemm {

// Values of Variant::dtypes. kHalfTypes are the 16-bit types, float16 and bfloat16.
constexpr uint32_t kHalfTypes = 1u << static_cast<int>(DType::kF16) | 1u << static_cast<int>(DType::kBF16);
constexpr uint32_t kFloat32 = 1u << static_cast<int>(DType::kF32);
constexpr uint32_t kFloat64 = 1u << static_cast<int>(DType::kF64);
constexpr uint32_t kComplex64 = 1u << static_cast<int>(DType::kC64);

// Compute capabilities, as DeviceFacts::cc counts them; kAnyNewer is above all of them.
constexpr int kAmpere = 80, kHopper = 90;
constexpr int kAnyNewer = 9999;

/// False in a build with HGEMM_CUDA_ARCHS=none, which compiles no .cu files: launchers are declared but not defined.
#ifdef HGEMM_NO_DEVICE_CODE
constexpr bool kHasDeviceCode = false;
#else
constexpr bool kHasDeviceCode = true;
#endif

/// False in a build whose HGEMM_CUDA_ARCHS leaves out 90a. Kernels for sm_90a are then reported as not built.
#ifdef HGEMM_NO_SM90A
constexpr bool kHasSm90aCode = false;
#else
constexpr bool kHasSm90aCode = true;
#endif

/// Formats the reason into `why`, unless it is null, and returns false. Variant::eligible refuses a problem by
/// returning this. `format` is printf's.
template <class... Values>
bool refuse(Reason* why, const char* format, Values... values) {
  if (why != nullptr) std::snprintf(why->text, sizeof(why->text), format, values...);
  return false;
}

/// Returns true if the build has code for sm_90a; otherwise refuses.
inline bool is_built_for_sm90a(Reason* why) {
  return kHasSm90aCode || refuse(why, "%s", "this build has no code for sm_90a: add 90a to HGEMM_CUDA_ARCHS");
}

/// The largest extent that kernels take. They count rows, columns and k in 32 bits, and tiles reach past the last ones.
constexpr int64_t kMaxExtent = int64_t{1} << 30;

/// Returns true if M, N and K are at most kMaxExtent; otherwise refuses.
inline bool has_countable_extents(const Problem& p, Reason* why) {
  if (p.m > kMaxExtent || p.n > kMaxExtent || p.k > kMaxExtent) {
    return refuse(why, "M, N and K must be at most 2^30, got %lld, %lld and %lld", static_cast<long long>(p.m),
                  static_cast<long long>(p.n), static_cast<long long>(p.k));
  }
  return true;
}

/// The most output tiles of kernels that count them in 32 bits. Clusters round their number up.
constexpr int64_t kMaxTiles = int64_t{1} << 29;

/// Returns true if D has at most kMaxTiles tiles of `tile_m` x `tile_n`; otherwise refuses.
inline bool has_countable_tiles(const Problem& p, int tile_m, int tile_n, Reason* why) {
  const int64_t tiles = ceil_div(p.m, tile_m) * ceil_div(p.n, tile_n) * p.batches();
  return tiles <= kMaxTiles || refuse(why, "needs %lld tiles, the limit is 2^29", static_cast<long long>(tiles));
}

/// Returns true if K is positive, and a kernel can count the problem's elements and tiles; otherwise refuses.
inline bool is_countable(const Problem& p, const Tile& tile, Reason* why) {
  if (!has_countable_extents(p, why)) return false;
  if (p.k == 0) return refuse(why, "K must be positive, got %lld", static_cast<long long>(p.k));
  return has_countable_tiles(p, tile.bm, tile.bn, why);
}

/// Returns true if the extents suit a kernel for a short side of at most `cols` elements; otherwise refuses. M or N
/// must be at most `cols`, K at most 2^log2_k, and the batch no larger than gridDim.z can be.
inline bool has_short_side(const Problem& p, int cols, int log2_k, Reason* why) {
  constexpr int64_t kMaxBatches = 65535;
  const auto m = static_cast<long long>(p.m), n = static_cast<long long>(p.n), k = static_cast<long long>(p.k);
  if (m > kMaxExtent || n > kMaxExtent || k > int64_t{1} << log2_k) {
    return refuse(why, "M and N must be at most 2^30 and K at most 2^%d, got %lld, %lld and %lld", log2_k, m, n, k);
  }
  if (m > cols && n > cols) return refuse(why, "M or N must be at most %d, got %lld and %lld", cols, m, n);
  if (p.batches() > kMaxBatches) {
    return refuse(why, "a batch must have at most %lld matrices, got %lld", static_cast<long long>(kMaxBatches),
                  static_cast<long long>(p.batches()));
  }
  return true;
}

/// A variant's name, which the compiler assembles from text and numbers.
struct Name {
  char text[64] = {};  // null-terminated
  int length = 0;      // without the terminator

  constexpr void append(const char* part) {
    for (; *part != '\0'; ++part) text[length++] = *part;
    text[length] = '\0';
  }

  /// Appends a number in decimal. Requires number >= 0.
  constexpr void append(int number) {
    if (number >= 10) append(number / 10);
    text[length++] = static_cast<char>('0' + number % 10);
    text[length] = '\0';
  }
};

/// Joins text and numbers: name_of("gemv_m", 1) is "gemv_m1".
template <class... Parts>
constexpr Name name_of(Parts... parts) {
  Name name;
  (name.append(parts), ...);
  return name;
}

/// Calls a launcher that a .cu file defines, and returns its status. In a build without device code, returns
/// cudaErrorNoKernelImageForDevice. `kLauncher` is a template argument so that such a build does not refer to it, which
/// the linker could not resolve.
template <auto kLauncher, class... Arguments>
Status call(const Arguments&... arguments) {
  if constexpr (kHasDeviceCode) {
    return kLauncher(arguments...);
  } else {
    constexpr Status kNoKernelImageForDevice = 209;  // cudaErrorNoKernelImageForDevice
    return kNoKernelImageForDevice;
  }
}

/// The functions of a Variant whose kernel needs no workspace. They bind the functions of its family to one kernel:
///
///   kLine              the kernel's constants
///   kEligible          bool (Problem, Line, Reason*), see Variant::eligible
///   kPredictUs         double (Problem, DeviceFacts, Line), in microseconds
///   kSchedule          Schedule (Problem, DeviceFacts, Line): how the GEMM is divided among blocks
///   kF16, kBF16, kF32  Status (Problem, Schedule, Stream): the launchers for float16, bfloat16 and, where the kernel
///                      takes it, float32
///
/// All of them are template arguments because Variant holds plain function pointers.
template <const auto& kLine, auto kEligible, auto kPredictUs, auto kSchedule, auto kF16, auto kBF16, auto kF32 = kF16>
struct ScheduledFunctions {
  static bool eligible(const Problem& p, const DeviceFacts&, Reason* why) { return kEligible(p, kLine, why); }
  static size_t workspace(const Problem&, const DeviceFacts&) { return 0; }
  static double predict_us(const Problem& p, const DeviceFacts& facts) { return kPredictUs(p, facts, kLine); }
  static Status launch(const Problem& p, const DeviceFacts& facts, void*, Stream stream) {
    const auto s = kSchedule(p, facts, kLine);
    switch (p.dtype) {
      case DType::kBF16: return call<kBF16>(p, s, stream);
      case DType::kF32: return call<kF32>(p, s, stream);
      default: return call<kF16>(p, s, stream);
    }
  }
};

/// The same for a kernel that may cut K into slices, whose partial sums its blocks leave in the workspace: for each
/// matrix of the batch, (tiles, slices, tile.bn, tile_rows) floats, unless there is only one slice.
///
/// The kernel's Schedule has the members slices, tiles and tile_rows. The launchers take the workspace as well:
/// `kBF16` runs bfloat16, and `kLaunch` the other dtypes.
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

/// Returns a Variant that runs on every architecture from sm_80 on and accumulates in float32. The caller then sets the
/// fields that differ.
///
/// `Functions` has the four static functions of a Variant. `name` must have static storage duration, since the Variant
/// points to its text. `line` has the members `tile` and `smem_bytes`.
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

/// One array of the elements of all arrays, in order.
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

/// An array with this one variant if kExists, else an empty array.
template <bool kExists>
constexpr std::array<Variant, kExists> array_if(const Variant& variant) {
  std::array<Variant, kExists> out{};
  for (Variant& v : out) v = variant;
  return out;
}

/// The variants of a family in one array. `list` is kKernels of the family's list.h; `variants_of(kernel)` returns the
/// array of one kernel's variants.
template <class... Kernels, class VariantsOf>
constexpr auto variants_of_list(const std::tuple<Kernels...>& list, VariantsOf variants_of) {
  return std::apply([&](const auto&... kernels) { return concatenate(variants_of(kernels)...); }, list);
}

}  // namespace hgemm
