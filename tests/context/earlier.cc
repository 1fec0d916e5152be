// For test_earlier.py: a door as those of csrc/aten/override.cc, at the CPU key, and an override of another package.
#include "aten/earlier.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/addmm_cpu_dispatch.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mm_cpu_dispatch.h>
#include <torch/library.h>

#include <memory>

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

using at::Scalar;
using at::Tensor;
using KeySet = c10::DispatchKeySet;

constexpr auto kKey = c10::DispatchKey::CPU;

int by_torch = 0;  // direct calls of torch's functions
int by_other = 0;
hgemm::Earlier earlier_mm, earlier_mm_out, earlier_addmm;

Tensor mm(KeySet keys, const Tensor& a, const Tensor& b) {
  const auto torchs = [](const Tensor& x, const Tensor& y) { return ++by_torch, at::cpu::mm(x, y); };
  return earlier_mm(keys, torchs, a, b);
}
Tensor& mm_out(KeySet keys, const Tensor& a, const Tensor& b, Tensor& out) {
  const auto torchs = [](const Tensor& x, const Tensor& y, Tensor& z) -> Tensor& {
    return ++by_torch, at::cpu::mm_outf(x, y, z);
  };
  return earlier_mm_out(keys, torchs, a, b, out);
}
Tensor& addmm_(KeySet keys, Tensor& c, const Tensor& a, const Tensor& b, const Scalar& beta, const Scalar& alpha) {
  const auto torchs = [](Tensor& z, const Tensor& x, const Tensor& y, const Scalar& s, const Scalar& t) -> Tensor& {
    return ++by_torch, at::cpu::addmm_(z, x, y, s, t);
  };
  return earlier_addmm(keys, torchs, c, a, b, beta, alpha);
}

Tensor sevens(const Tensor& a, const Tensor& b) {
  ++by_other;
  return at::full({a.size(0), b.size(1)}, 7, a.options());
}
Tensor& sevens_out(const Tensor&, const Tensor&, Tensor& out) {
  ++by_other;
  return out.fill_(7);
}

std::unique_ptr<torch::Library> ours, others;

}  // namespace

EXPORT void install() {
  earlier_mm.look_up("mm", kKey);
  earlier_mm_out.look_up("mm.out", kKey);
  earlier_addmm.look_up("addmm_", kKey);
  ours = std::make_unique<torch::Library>(torch::Library::IMPL, "aten", kKey, __FILE__, __LINE__);
  ours->impl("mm", TORCH_FN(mm)).impl("mm.out", TORCH_FN(mm_out)).impl("addmm_", TORCH_FN(addmm_));
}

EXPORT void register_other() {
  others = std::make_unique<torch::Library>(torch::Library::IMPL, "aten", kKey, __FILE__, __LINE__);
  others->impl("mm", TORCH_FN(sevens)).impl("mm.out", TORCH_FN(sevens_out));
}
EXPORT void remove_other() {
  others.reset();
}

EXPORT int calls_of_torch() {
  return by_torch;
}
EXPORT int calls_of_other() {
  return by_other;
}
