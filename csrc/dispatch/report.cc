#include "dispatch/report.h"

#include <cmath>
#include <cstdint>
#include <cstring>

#include "core/problem.h"
#include "dispatch/decision.h"
#include "dispatch/explain.h"
#include "dispatch/gemm_api.h"
#include "dispatch/grouped.h"

namespace hgemm {
namespace {

bool is_fallback(const HgemmCallKind& kind) {
  return kind.left == HGEMM_LEFT_NOT && kind.source == static_cast<int8_t>(Source::kFallback);
}

/// Calls copy(field of the kind, field of the problem or decision) for each field that the two have in common.
/// kind_of() copies to the kind, call_of() from it.
template <class Kind, class AnyProblem, class AnyDecision, class Copy>
void for_each_field(Kind& kind, AnyProblem& p, AnyDecision& d, const Copy& copy) {
  copy(kind.m, p.m);
  copy(kind.n, p.n);
  copy(kind.k, p.k);
  copy(kind.dtype, p.dtype);
  copy(kind.out_dtype, p.out_dtype);
  copy(kind.act, p.act);
  copy(kind.numerics, p.numerics);
  copy(kind.float32, p.float32);
  copy(kind.variant, d.variant);
  copy(kind.source, d.source);
  copy(kind.us, d.us);
  copy(kind.torch_us, d.torch_us);
  copy(kind.margin, d.margin);
  copy(kind.neighbours, d.neighbours);
  copy(kind.measured_dtype, d.measured_dtype);
  copy(kind.remark, d.remark);
}

/// Assigns a value, after a cast between an enum and its number.
template <class To, class From>
void assign(To& to, const From& from) {
  to = static_cast<To>(from);
}

/// A decision, and a problem for which reason_of() gives the same words as for the counted one.
struct Call {
  Problem problem;
  Decision decision;
};

Call call_of(const HgemmCallKind& kind) {
  constexpr int64_t kAligned = 1024;  // the stride of everything, so that the address of D gives the alignment
  const auto matrix = [](bool unit_columns) {
    Matrix x;
    x.row_stride = unit_columns ? kAligned : 1;
    x.col_stride = unit_columns ? 1 : kAligned;
    x.batch_stride[1] = kAligned;
    return x;
  };
  Call call;
  Problem& p = call.problem;
  for_each_field(kind, p, call.decision, [](const auto& of_kind, auto& of_call) { assign(of_call, of_kind); });
  p.batch[1] = kind.batch;
  p.a = matrix(static_cast<Major>(kind.a_major) == Major::kK);
  p.b = matrix(static_cast<Major>(kind.b_major) != Major::kK);
  p.d = matrix(true);
  p.d.data = reinterpret_cast<void*>(static_cast<uintptr_t>(kind.align));
  if (kind.has_bias) p.bias = p.d.data;
  if (kind.has_c) p.c.data = p.d.data;
  return call;
}

/// The reason for the choice of a grouped product's kernel.
std::string grouped_reason(const HgemmCallKind& kind) {
  return reason_of(GroupedDecision{.kernel = kind.variant == kTorch ? kTorch : kind.variant - kFirstGroupedKernel,
                                   .source = static_cast<Source>(kind.source),
                                   .remark = static_cast<Remark>(kind.remark)});
}

float tenths(float us) {
  return std::isnan(us) ? 0.0f : std::nearbyint(us * 10) / 10;
}

}  // namespace

HgemmCallKind kind_of(const CountedCall& call) {
  const Problem& p = call.problem;
  HgemmCallKind kind{};
  for_each_field(kind, p, call.decision, [](auto& of_kind, const auto& of_call) { assign(of_kind, of_call); });
  if (call.is_grouped) kind.act = kGroupedAct;
  kind.batch = p.batches();
  assign(kind.a_major, p.a_major());
  assign(kind.b_major, p.b_major());
  assign(kind.align, alignments_of(p).least());
  kind.has_bias = p.bias != nullptr;
  kind.has_c = p.c.data != nullptr;
  kind.site = call.site;
  assign(kind.ordinal, call.ordinal);
  assign(kind.cc, call.cc);
  assign(kind.left, call.left);
  return kind;
}

HgemmCallKind shown_of(const HgemmCallKind& kind) {
  HgemmCallKind shown = kind;
  shown.ordinal = 0;
  shown.us = tenths(kind.us);
  shown.torch_us = tenths(kind.torch_us);
  if (is_fallback(kind)) return shown;  // the words for it describe the whole problem
  shown.has_bias = kind.has_bias || kind.has_c;
  shown.has_c = 0;
  shown.out_dtype = kind.dtype;
  shown.align = 16;
  shown.float32 = 0;
  shown.numerics = kind.numerics != static_cast<int8_t>(NumericsMode::kFast);
  return shown;
}

std::string reason_of(const HgemmCallKind& kind) {
  if (kind.act == kGroupedAct && kind.left == HGEMM_LEFT_NOT) return grouped_reason(kind);
  if (kind.left != HGEMM_LEFT_NOT) return hgemm_left_reason(kind.left);
  if (kind.batch * kind.m * kind.n == 0) return "a size is 0, so there is nothing to multiply";
  const Call call = call_of(kind);
  return std::string(source_name(call.decision.source)) + ": " + reason_of(call.problem, kind.cc, call.decision);
}

}  // namespace hgemm

int64_t hgemm_reasons(const HgemmCallCount* rows, int count, char* text, int64_t capacity) {
  int64_t bytes = 0;
  for (int i = 0; i < count; ++i) {
    const std::string reason = hgemm::reason_of(rows[i].kind);
    const int64_t end = bytes + static_cast<int64_t>(reason.size()) + 1;
    if (end <= capacity) std::memcpy(text + bytes, reason.c_str(), reason.size() + 1);
    bytes = end;
  }
  return bytes;
}
