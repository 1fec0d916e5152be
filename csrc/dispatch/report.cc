#include "dispatch/report.h"

#include <cmath>
#include <cstdint>
#include <cstring>

#include "core/problem.h"
#include "dispatch/decision.h"
#include "dispatch/explain.h"
#include "dispatch/gemm_api.h"

namespace hgemm {
namespace {

bool is_fallback(const HgemmCallKind& kind) {
  return kind.left == HGEMM_LEFT_NOT && kind.source == static_cast<int8_t>(Source::kFallback);
}

/// A problem that the words for a decision describe as they would describe the one that was counted (kind_of()).
Problem problem_of(const HgemmCallKind& kind) {
  constexpr int64_t kAligned = 1024;  // the stride of everything, so that the address of D gives the alignment
  const auto matrix = [](bool unit_columns) {
    Matrix x;
    x.row_stride = unit_columns ? kAligned : 1;
    x.col_stride = unit_columns ? 1 : kAligned;
    x.batch_stride[1] = kAligned;
    return x;
  };
  Problem p;
  p.m = kind.m;
  p.n = kind.n;
  p.k = kind.k;
  p.batch[1] = kind.batch;
  p.dtype = static_cast<DType>(kind.dtype);
  p.out_dtype = static_cast<DType>(kind.out_dtype);
  p.act = static_cast<Activation>(kind.act);
  p.numerics = static_cast<NumericsMode>(kind.numerics);
  p.float32 = static_cast<Float32Mode>(kind.float32);
  p.a = matrix(static_cast<Major>(kind.a_major) == Major::kK);
  p.b = matrix(static_cast<Major>(kind.b_major) != Major::kK);
  p.d = matrix(true);
  p.d.data = reinterpret_cast<void*>(static_cast<uintptr_t>(kind.align));
  if (kind.has_bias) p.bias = p.d.data;
  if (kind.has_c) p.c.data = p.d.data;
  return p;
}

Decision decision_of(const HgemmCallKind& kind) {
  return {.variant = kind.variant,
          .source = static_cast<Source>(kind.source),
          .us = kind.us,
          .torch_us = kind.torch_us,
          .margin = kind.margin,
          .neighbours = kind.neighbours,
          .measured_dtype = kind.measured_dtype,
          .remark = static_cast<Remark>(kind.remark)};
}

/// The reason for the choice of a grouped product's kernel.
std::string grouped_reason(const HgemmCallKind& kind) {
  if (kind.variant == kTorch) return "fallback: no kernel of ours takes this grouped product, or torch was asked for";
  return kind.source == static_cast<int8_t>(Source::kForced) ? "forced: the call names the kernel"
                                                             : "model: by the rows of a group";
}

float tenths(float us) {
  return std::isnan(us) ? 0.0f : std::nearbyint(us * 10) / 10;
}

}  // namespace

HgemmCallKind kind_of(const CountedCall& call) {
  const Problem& p = call.problem;
  const Decision& d = call.decision;
  return {.batch = p.batches(),
          .m = p.m,
          .n = p.n,
          .k = p.k,
          .site = call.site,
          .variant = d.variant,
          .ordinal = static_cast<int16_t>(call.ordinal),
          .cc = static_cast<int16_t>(call.cc),
          .dtype = static_cast<int8_t>(p.dtype),
          .out_dtype = static_cast<int8_t>(p.out_dtype),
          .a_major = static_cast<int8_t>(p.a_major()),
          .b_major = static_cast<int8_t>(p.b_major()),
          .act = call.is_grouped ? kGroupedAct : static_cast<int8_t>(p.act),
          .has_bias = p.bias != nullptr,
          .has_c = p.c.data != nullptr,
          .align = static_cast<int8_t>(alignments_of(p).least()),
          .source = static_cast<int8_t>(d.source),
          .left = static_cast<int8_t>(call.left),
          .numerics = static_cast<int8_t>(p.numerics),
          .float32 = static_cast<int8_t>(p.float32),
          .us = d.us,
          .torch_us = d.torch_us,
          .margin = d.margin,
          .neighbours = d.neighbours,
          .measured_dtype = d.measured_dtype,
          .remark = static_cast<int8_t>(d.remark)};
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
  return std::string(source_name(static_cast<Source>(kind.source))) + ": " +
         reason_of(problem_of(kind), kind.cc, decision_of(kind));
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
