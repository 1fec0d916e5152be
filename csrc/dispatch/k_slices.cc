#include "dispatch/k_slices.h"

#include <algorithm>

namespace hgemm {
namespace {

// The error grows with the length of a slice. torch splits K itself where C is small: at K = 4,096 into three slices on
// an H100, and into more where rows are not aligned. With slices this long the error stays below twice torch's.
constexpr int64_t kMostK = 1024;
constexpr int64_t kStepK = 64;  // slices but the last are a multiple of it, so they keep the operands' alignment

int64_t round_up(int64_t x, int64_t to) {
  return (x + to - 1) / to * to;
}

/// Calls `visit(slice)` for each slice that differs from the others by more than its position. Stops, and returns
/// false, where it returns false.
template <class Visit>
bool visit_kinds(const Problem& p, const KSlices& slices, const Visit& visit) {
  if (slices.count == 1) return visit(p);
  return visit(k_slice(p, slices, 0)) && (slices.count == 2 || visit(k_slice(p, slices, 1))) &&
         visit(k_slice(p, slices, slices.count - 1));
}

}  // namespace

KSlices k_slices_of(const Problem& p) {
  if (p.numerics == NumericsMode::kFast || !p.is_half() || p.out_dtype != DType::kF32 || p.gated || p.k <= kMostK) {
    return {1, p.k};
  }
  const int64_t count = (p.k + kMostK - 1) / kMostK, length = round_up((p.k + count - 1) / count, kStepK);
  return {(p.k + length - 1) / length, length};
}

Problem k_slice(const Problem& p, const KSlices& slices, int64_t i) {
  // Stands for a D that is not allocated yet. Allocators align to more than these 16 bytes, and kernels distinguish no
  // more.
  void* const later = reinterpret_cast<void*>(uintptr_t{16});
  const auto advance = [](Matrix* x, int64_t elements) {
    if (x->data != nullptr) x->data = static_cast<unsigned char*>(x->data) + elements * 2;
  };
  Problem q = p;
  const int64_t first = i * slices.length;
  q.k = std::min(slices.length, p.k - first);
  advance(&q.a, first * p.a.col_stride);
  advance(&q.b, first * p.b.row_stride);
  if (i > 0) {
    q.c = p.d;
    if (q.c.data == nullptr) q.c.data = later;
    q.c_dtype = p.out_dtype;
    q.beta = 1.0f;
    q.bias = nullptr;
  }
  if (i + 1 < slices.count) {
    q.act = Activation::kNone;
    q.pre_activation = nullptr;
  }
  return q;
}

bool can_run_slices(const Variant& v, const Problem& p, const DeviceFacts& facts, Reason* why) {
  return visit_kinds(p, k_slices_of(p), [&](const Problem& slice) { return v.eligible(slice, facts, why); });
}

size_t slices_workspace(const Variant& v, const Problem& p, const DeviceFacts& facts) {
  size_t most = 0;
  visit_kinds(p, k_slices_of(p), [&](const Problem& slice) {
    most = std::max(most, v.workspace(slice, facts));
    return true;
  });
  return most;
}

double predict_slices_us(const Variant& v, const Problem& p, const DeviceFacts& facts) {
  const KSlices slices = k_slices_of(p);
  if (slices.count == 1) return v.predict_us(p, facts);
  const double others_us = v.predict_us(k_slice(p, slices, 1), facts);
  return v.predict_us(k_slice(p, slices, 0), facts) + static_cast<double>(slices.count - 1) * others_us;
}

Status launch_slices(const Variant& v, const Problem& p, const DeviceFacts& facts, void* workspace, Stream stream) {
  const KSlices slices = k_slices_of(p);
  if (slices.count == 1) return v.launch(p, facts, workspace, stream);
  for (int64_t i = 0; i < slices.count; ++i) {
    if (const Status e = v.launch(k_slice(p, slices, i), facts, workspace, stream)) return e;
  }
  return 0;
}

}  // namespace hgemm
