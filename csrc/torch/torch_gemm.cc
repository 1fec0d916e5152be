#include "torch/torch_gemm.h"

#include <torch/csrc/inductor/aoti_torch/generated/c_shim_cuda.h>
#include <torch/csrc/stable/stableivalue_conversions.h>

#include <algorithm>
#include <array>

#include "core/activation.h"
#include "core/device.h"
#include "dispatch/devices.h"

// torch's CUDA implementations, called without torch's dispatcher. Every torch with CUDA has them. They are weak, so
// that this library also loads in one without.
#pragma weak aoti_torch_cuda_mm_out
#pragma weak aoti_torch_cuda_bmm_out
#pragma weak aoti_torch_cuda_addmm_out
#pragma weak aoti_torch_cuda_baddbmm_out
#pragma weak aoti_torch_cuda_mul_Scalar
#pragma weak aoti_torch_cuda_add_Tensor

namespace hgemm {
namespace {

namespace stable = torch::stable::detail;

/// The largest workspace that torch allocates for cuBLAS by itself: 32 MiB, from sm_90 on.
constexpr int64_t kCublasWorkspace = int64_t{32} << 20;

StableIValue reference(AtenTensorHandle handle) {
  return stable::from(new_reference(handle));
}

/// Calls an aten op on tensors of `device` that writes its only result into its last argument.
template <size_t N>
void call_aten_out(const char* name, const char* overload, Device device, std::array<StableIValue, N> stack) {
  const AOTITorchError status = torch_call_dispatcher(name, overload, stack.data(), TORCH_ABI_VERSION);
  check_computed(status, name, device, kCublasWorkspace);
  const Handle out(stable::to<AtenTensorHandle>(stack[0]));
}

/// A tensor as an argument of a 2-D or 3-D GEMM: the tensor itself where it already has these sizes and strides, else a
/// view of it or of its contiguous copy.
class Argument {
 public:
  Argument(const Tensor& t, const Copy* copy, int rank, const int64_t* sizes, const int64_t* strides) {
    const bool copied = copy != nullptr && copy->needed;
    if (!copied && t.view.ndim == rank && std::equal(sizes, sizes + rank, t.view.sizes) &&
        std::equal(strides, strides + rank, t.view.strides)) {
      handle_ = t.handle.get();
      return;
    }
    const Handle base =
        copied ? contiguous_copy(t, *copy, empty_contiguous(copy->ndim, copy->sizes, t.dtype, t.device)) : Handle();
    view_ = reinterpret(copied ? base.get() : t.handle.get(), rank, sizes, strides);
    handle_ = view_.get();
  }

  AtenTensorHandle get() const { return handle_; }

 private:
  Handle view_;
  AtenTensorHandle handle_;
};

/// Sizes or strides as {batch, rows, columns}. A 2-D GEMM takes the last two.
using Triple = std::array<int64_t, 3>;

Triple strides_of(const Matrix& x) {
  return {x.batch_stride[1], x.row_stride, x.col_stride};
}

/// Applies an activation with torch's own ops, from `x` to `y`, which may be x.
void aten_activate(Activation act, Device device, AtenTensorHandle x, AtenTensorHandle y) {
  switch (act) {
    case Activation::kNone: break;
    case Activation::kRelu: call_aten_out<2>("aten::relu", "out", device, {reference(x), reference(y)}); break;
    case Activation::kSilu: call_aten_out<2>("aten::silu", "out", device, {reference(x), reference(y)}); break;
    case Activation::kGelu:
    case Activation::kGeluTanh: {
      // NOTE: torch up to 2.13 leaks the 32 bytes of a str argument. Only float64 takes this path.
      const std::string approximate = act == Activation::kGelu ? "none" : "tanh";
      call_aten_out<3>("aten::gelu", "out", device, {reference(x), stable::from(approximate), reference(y)});
      break;
    }
  }
}

/// Applies the call's activation to `count` elements, with a kernel of ours where there is one; x and y are contiguous.
void activate(const Call& call, Destination x, Destination y, int64_t count) {
  const auto act = static_cast<Activation>(call.act);
  if (const auto dtype = activation_dtype(call.result_dtype());
      dtype && usable_device(call.a.device.index) != nullptr) {
    const Status status = launch_activation(x.data, y.data, count, *dtype, act, current_stream(call.a.device));
    if (status != 0) fail(std::string("hgemm: the activation kernel failed to launch: ") + status_string(status));
    return;
  }
  aten_activate(act, call.a.device, x.handle, y.handle);
}

/// Computes alpha * a @ b + beta * c in float32 from 16-bit operands. Of torch's ops for this, the stable ABI can only
/// call the plain matmul, because Scalar arguments do not cross it. So alpha and c cost further passes.
void gemm_with_out_dtype(const Call& call, int rank, AtenTensorHandle a, AtenTensorHandle b, AtenTensorHandle c,
                         AtenTensorHandle d) {
  call_aten_out<4>(rank == 2 ? "aten::mm" : "aten::bmm", "dtype_out", call.a.device,
                   {reference(a), reference(b), stable::from(call.result_dtype()), reference(d)});
  if (call.alpha == 1.0 && c == nullptr) return;
  AtenTensorHandle result = d;
  Handle scaled, sum;
  int64_t elements = 0;
  check(aoti_torch_get_numel(d, &elements), "get_numel");
  const int64_t bytes = elements * static_cast<int64_t>(aoti_torch_dtype_element_size(call.result_dtype()));
  if (call.alpha != 1.0) {
    check_computed(aoti_torch_cuda_mul_Scalar(d, call.alpha, &result), "mul", call.a.device, bytes);
    scaled.reset(result);
  }
  if (c != nullptr) {
    check_computed(aoti_torch_cuda_add_Tensor(result, c, call.beta, &result), "add", call.a.device, bytes);
    sum.reset(result);
  }
  check(aoti_torch_copy_(d, result, 0), "copy_");
}

}  // namespace

void torch_gemm(const Call& call, const Canonical& canonical, Destination d, Destination pre_activation) {
  if (aoti_torch_cuda_mm_out == nullptr) fail("hgemm: this PyTorch has no CUDA support");
  const Problem& p = canonical.problem;
  if (p.batch[0] > 1 || p.rows_are_batch) {
    Canonical one_batch_dim;
    canonicalize(call.operands(/*max_batch_dims=*/1), &one_batch_dim);
    return torch_gemm(call, one_batch_dim, d, pre_activation);
  }

  const int rank = p.batch[1] > 1 ? 3 : 2, skip = 3 - rank;
  const Triple a_sizes{p.batch[1], p.m, p.k}, b_sizes{p.batch[1], p.k, p.n}, d_sizes{p.batch[1], p.m, p.n};
  const Triple a_strides = strides_of(p.a), b_strides = strides_of(p.b), d_strides{p.m * p.n, p.n, 1};
  const Argument a(call.a, &canonical.copy_a, rank, &a_sizes[skip], &a_strides[skip]);
  const Argument b(call.b, &canonical.copy_b, rank, &b_sizes[skip], &b_strides[skip]);

  // torch takes another path for a vector (cuBLASLt's bias) than for the same row expanded, and rounds differently.
  std::optional<Argument> c;
  if (p.bias != nullptr && call.c.view.ndim == 1) {
    c.emplace(call.c, nullptr, 1, &d_sizes[2], &d_strides[2]);
  } else if (p.bias != nullptr || p.c.data != nullptr) {
    const Triple c_strides = p.bias != nullptr ? Triple{0, 0, 1} : strides_of(p.c);
    c.emplace(call.c, nullptr, rank, &d_sizes[skip], &c_strides[skip]);
  }

  const Destination target = pre_activation.handle != nullptr ? pre_activation : d;
  Handle target_view;
  AtenTensorHandle result = target.handle;
  if (canonical.out_ndim != rank || !std::equal(&d_sizes[skip], d_sizes.end(), canonical.out_sizes)) {
    target_view = reinterpret(target.handle, rank, &d_sizes[skip], &d_strides[skip]);
    result = target_view.get();
  }

  if (call.result_dtype() != call.a.dtype) {
    gemm_with_out_dtype(call, rank, a.get(), b.get(), c ? c->get() : nullptr, result);
  } else if (!c && call.alpha == 1.0) {
    check_computed(rank == 2 ? aoti_torch_cuda_mm_out(result, a.get(), b.get())
                             : aoti_torch_cuda_bmm_out(result, a.get(), b.get()),
                   op_name(call.op), call.a.device, kCublasWorkspace);
  } else {
    const AtenTensorHandle addend = c ? c->get() : result;  // torch ignores it where beta is 0
    const double beta = c ? call.beta : 0.0;
    check_computed(rank == 2 ? aoti_torch_cuda_addmm_out(result, addend, a.get(), b.get(), beta, call.alpha)
                             : aoti_torch_cuda_baddbmm_out(result, addend, a.get(), b.get(), beta, call.alpha),
                   op_name(call.op), call.a.device, kCublasWorkspace);
  }

  if (call.act != 0) {
    activate(call, target, d, p.batches() * p.m * p.n);
  } else if (target.handle != d.handle) {
    check(aoti_torch_copy_(d.handle, target.handle, 0), "copy_");
  }
}

void torch_gate(Activation act, Device device, Destination y, Destination d, int64_t rows, int64_t n) {
  const int64_t sizes[] = {rows, n}, halves[] = {2 * n, 1}, whole[] = {n, 1};
  const Handle gate = reinterpret(y.handle, 2, sizes, halves), up = reinterpret(y.handle, 2, sizes, halves, n);
  const Handle result = reinterpret(d.handle, 2, sizes, whole);
  if (act == Activation::kNone) {
    check(aoti_torch_copy_(result.get(), gate.get(), 0), "copy_");
  } else {
    aten_activate(act, device, gate.get(), result.get());
  }
  call_aten_out<3>("aten::mul", "out", device, {reference(result.get()), reference(up.get()), reference(result.get())});
}

}  // namespace hgemm
