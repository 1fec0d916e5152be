// What families share whose kernels over two float16 planes (split_planes.h) have a kernel over three behind them.
//
// The first kernel sets a flag on the device, `inaccurate`, where a result is not accurate. The second one then
// computes all of D again, and otherwise leaves at once. The host does not wait for either.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/problem.h"
#include "core/variant_list.h"
#include "tile/split_planes.h"

namespace hgemm::tile::split {

/// The least K of a kernel over two planes. An element keeps 23 of its 24 bits, which shows where few products are
/// summed.
constexpr int64_t kLeastK = 128;
constexpr size_t kFlagBytes = 256;  // of the workspace, at its start: the flag `inaccurate`
constexpr double kIdleUs = 3.5;     // two launches that find nothing to do, as measured on an H200

/// The problem of both kernels, by rows, with the workspace behind the flag that they share.
inline Problem behind_flag(const Problem& given) {
  Problem p = by_rows(given);
  p.most_workspace -= kFlagBytes;
  return p;
}

/// True unless K is too short for two planes, or the workspace for `inaccurate`.
inline bool takes_two_planes(const Problem& given, Reason* why) {
  const int64_t least = given.dtype == DType::kC64 ? kLeastK / 2 : kLeastK;
  if (given.k < least) {
    return refuse(why, "K must be at least %lld, got %lld", static_cast<long long>(least),
                  static_cast<long long>(given.k));
  }
  if (!takes_if_complex(given, why)) return false;
  return given.most_workspace >= static_cast<int64_t>(kFlagBytes) || refuse(why, "%s", "needs a workspace");
}

/// True if the kernel over two planes and the one over three can both run the problem. `kEligible` is the family's
/// predicate for one kernel.
template <auto kEligible, class Line>
bool are_eligible(const Problem& given, const DeviceFacts& facts, const Line& two, const Line& three, Reason* why) {
  if (!takes_two_planes(given, why)) return false;
  const Problem p = behind_flag(given);
  return kEligible(p, facts, two, why) && kEligible(p, facts, three, why);
}

/// The bytes from the first to the last element of a matrix.
struct Span {
  const unsigned char *first, *last;
};
inline Span span_of(const Problem& p, const Matrix& x) {
  const auto* const first = static_cast<const unsigned char*>(x.data);
  const int64_t elements = (p.m - 1) * x.row_stride + (p.n - 1) * x.col_stride + (p.batch[0] - 1) * x.batch_stride[0] +
                           (p.batch[1] - 1) * x.batch_stride[1];
  return {first, first + elements * int64_t{sizeof(float)}};
}

/// True if D may lie where C does, so that D can be computed only once.
inline bool overwrites_c(const Problem& p) {
  if (p.c.data == nullptr || p.beta == 0.0f) return false;
  const Span c = span_of(p, p.c), d = span_of(p, p.d);
  return c.first <= d.last && d.first <= c.last;
}

/// Launches the kernel over two planes, and behind it the one over three, for a problem of behind_flag(). Where D can
/// be computed only once, it launches the kernel over three planes alone. Each is launched by a function of the rest of
/// the workspace and `inaccurate`, which is null where that kernel runs alone.
template <class Two, class Three>
Status launch_both(const Problem& p, void* workspace, const Two& launch_two, const Three& launch_three) {
  auto* const inaccurate = static_cast<unsigned*>(workspace);
  void* const rest = static_cast<unsigned char*>(workspace) + kFlagBytes;
  if (overwrites_c(p)) return launch_three(rest, nullptr);
  if (const Status e = launch_two(rest, inaccurate)) return e;
  return launch_three(rest, inaccurate);
}

}  // namespace hgemm::tile::split
