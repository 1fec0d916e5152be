// The CUDA implementations of the ladder's elementwise additions: checks, output, launch.
#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/library.h>

#include <algorithm>

#include "core/device.h"
#include "ladder/variants.h"
#include "torch/tensor_access.h"

namespace hgemm {
namespace {

/// Checks the operands as the fake implementation (hgemm_ops/ops/ladder.py) does, with the same messages.
void check_operands(const ladder::Add& add, const Tensor& a, const Tensor& b) {
  const std::string prefix = std::string("hgemm::") + add.name + ": ";
  if (!(a.device == b.device)) fail(prefix + "a and b must be on one device");
  if (gemm_dtype(a.dtype) != add.dtype || gemm_dtype(b.dtype) != add.dtype) {
    fail(prefix + "a and b must be torch." + dtype_name(add.dtype));
  }
  const TensorView &x = a.view, &y = b.view;
  if (x.ndim > kMaxDims) fail(prefix + "a and b must be at most " + std::to_string(kMaxDims) + "-D");
  if (x.ndim != y.ndim || !std::equal(x.sizes, x.sizes + x.ndim, y.sizes)) {
    fail(prefix + "a " + shape_text(x.ndim, x.sizes) + " and b " + shape_text(y.ndim, y.sizes) +
         " must have one shape");
  }
}

/// Returns the memory of a contiguous tensor, or of a contiguous copy, which `copy` then owns.
const void* contiguous_data(const Tensor& t, Handle* copy) {
  bool contiguous = false;
  check(aoti_torch_is_contiguous(t.handle.get(), &contiguous), "is_contiguous");
  if (contiguous) return t.view.data;
  *copy = empty_contiguous(t.view.ndim, t.view.sizes, t.dtype, t.device);
  check(aoti_torch_copy_(copy->get(), t.handle.get(), 0), "copy_");
  return mutable_data(copy->get());
}

Handle run(const ladder::Add& add, const Tensor& a, const Tensor& b) {
  check_operands(add, a, b);
  const torch::stable::accelerator::DeviceGuard on_device(a.device.index);
  Handle result = empty_contiguous(a.view.ndim, a.view.sizes, a.dtype, a.device);
  ladder::AddProblem problem;
  problem.count = 1;
  for (int i = 0; i < a.view.ndim; ++i) problem.count *= a.view.sizes[i];
  if (problem.count == 0) return result;
  Handle a_copy, b_copy;
  problem.a = contiguous_data(a, &a_copy);
  problem.b = contiguous_data(b, &b_copy);
  problem.c = mutable_data(result.get());
  if (const Status status = add.launch(problem, current_stream(a.device)); status != 0) {
    fail(std::string("hgemm::") + add.name + " failed to launch: " + status_string(status));
  }
  return result;
}

// The index of each addition in ladder::kAdds.
enum : int {
#define RUNG_ADD(NAME, ...) kIndex_##NAME,
#include "ladder/variants.inc"
};

/// Runs one addition, in the calling convention of the stable ABI.
template <int kIndex>
void boxed(StableIValue* stack, uint64_t, uint64_t) {
  const auto take = [](StableIValue value) {
    return inspect(Handle(torch::stable::detail::to<AtenTensorHandle>(value)));
  };
  const Tensor a = take(stack[0]), b = take(stack[1]);
  stack[0] = torch::stable::detail::from(run(ladder::kAdds[kIndex], a, b).release());
}

}  // namespace
}  // namespace hgemm

STABLE_TORCH_LIBRARY_IMPL(hgemm, CUDA, library) {
  (void)library;  // the list may be empty
#define RUNG_ADD(NAME, ...) library.impl(#NAME, hgemm::boxed<hgemm::kIndex_##NAME>);
#include "ladder/variants.inc"
}
