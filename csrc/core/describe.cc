#include "core/describe.h"

#include <cinttypes>

#include "core/format.h"

namespace hgemm {

std::string describe(const Problem& p) {
  static constexpr const char* kActs[] = {"", " relu", " gelu", " gelu_tanh", " silu"};
  std::string text = format("%s %s ", dtype_name(p.dtype), layout_name(p));
  if (p.batches() != 1) text += format("%" PRId64 "x", p.batches());
  text += format("%" PRId64 "x%" PRId64 "x%" PRId64, p.m, p.n, p.k);
  const Alignments alignments = alignments_of(p);
  if (!alignments.all_whole()) text += format(" (%d-byte aligned)", alignments.least());
  if (p.c.data) text += " + C";
  if (p.bias) text += " + bias";
  text += kActs[static_cast<int>(p.act)];
  if (p.out_dtype != p.dtype) text += format(" -> %s", dtype_name(p.out_dtype));
  return text;
}

}  // namespace hgemm
