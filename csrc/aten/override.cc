// Overrides torch's matmul operators (aten::mm, bmm, addmm, …) at the CUDA dispatch key. The key is below autograd,
// autocast, functorch and tensor subclasses, which all work as before. While a context of use_custom_gemm() is active
// and the dispatcher chooses a kernel of ours, that kernel computes the call. In all other cases the override calls
// what ran the operator before: torch's own CUDA function, or the override of another package (earlier.h).
//
// This directory is the only one that includes torch's C++ headers, because the stable ABI does not take the Scalar
// arguments of addmm. It is compiled once for each torch, in seconds, and calls the rest of the library through plain C
// functions (dispatch/gemm_api.h). Loading it changes nothing; hgemm_aten_install() registers the overrides.
#include <ATen/Context.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/ops/_addmm_activation_cuda_dispatch.h>
#include <ATen/ops/_grouped_mm_cuda_dispatch.h>
#include <ATen/ops/_int_mm_cuda_dispatch.h>
#include <ATen/ops/addmm_cuda_dispatch.h>
#include <ATen/ops/addmv_cuda_dispatch.h>
#include <ATen/ops/baddbmm_cuda_dispatch.h>
#include <ATen/ops/bmm_cuda_dispatch.h>
#include <ATen/ops/dot_cuda_dispatch.h>
#include <ATen/ops/empty_cuda_dispatch.h>
#include <ATen/ops/mm_cuda_dispatch.h>
#include <ATen/ops/vdot_cuda_dispatch.h>
#include <c10/core/Allocator.h>
#include <c10/core/DeviceGuard.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/library.h>

#include <optional>
#include <string>
#include <vector>

#include "aten/earlier.h"
#include "core/problem.h"
#include "dispatch/canonical.h"
#include "dispatch/gemm_api.h"

// A function of torch's stable C API. It is declared here because its header needs CUDA's headers, and it is weak
// because only a torch with CUDA has it.
extern "C" __attribute__((weak)) int32_t aoti_torch_get_current_cuda_stream(int32_t device_index, void** stream);

namespace hgemm {
namespace {

using at::Scalar;
using at::ScalarType;
using at::Tensor;
using KeySet = c10::DispatchKeySet;

constexpr auto kKey = c10::DispatchKey::CUDA;

const HgemmGemmApi* api = nullptr;

/// The arguments of one call: act(alpha * a @ b + beta * c), by torch's rules for `op`.
struct Product {
  Op op = Op::kMm;
  const Tensor* a = nullptr;
  const Tensor* b = nullptr;
  const Tensor* c = nullptr;
  const Scalar* beta = nullptr;
  const Scalar* alpha = nullptr;
  Activation act = Activation::kNone;
  std::optional<ScalarType> out_dtype = std::nullopt;
  bool is_int8 = false;       // _int_mm: int8 operands and an int32 result
  bool conjugates_a = false;  // vdot: a is conjugated, if it is complex
};

/// The DType of a torch dtype, or -1: either torch has no matmul of such tensors, or the report has no name for the
/// dtype.
int32_t dtype_of(ScalarType type) {
  switch (type) {
    case ScalarType::Half: return static_cast<int32_t>(DType::kF16);
    case ScalarType::BFloat16: return static_cast<int32_t>(DType::kBF16);
    case ScalarType::Float: return static_cast<int32_t>(DType::kF32);
    case ScalarType::Double: return static_cast<int32_t>(DType::kF64);
    case ScalarType::ComplexFloat: return static_cast<int32_t>(DType::kC64);
    case ScalarType::ComplexDouble: return static_cast<int32_t>(DType::kC128);
    case ScalarType::Char: return static_cast<int32_t>(DType::kI8);
    case ScalarType::Int: return static_cast<int32_t>(DType::kI32);
    default: return -1;
  }
}

bool is_half(int32_t dtype) {
  return dtype == static_cast<int32_t>(DType::kF16) || dtype == static_cast<int32_t>(DType::kBF16);
}

HgemmOperand operand(const Tensor& t) {
  return {.data = t.const_data_ptr(),
          .sizes = t.sizes().data(),
          .strides = t.strides().data(),
          .ndim = static_cast<int32_t>(t.dim()),
          .dtype = dtype_of(t.scalar_type())};
}

/// Whether a tensor has named dimensions. Torch had these up to 2.12.
template <class AnyTensor>
bool has_names(const AnyTensor& t) {
  if constexpr (requires { t.unsafeGetTensorImpl()->has_named_tensor_meta(); }) {
    return t.unsafeGetTensorImpl()->has_named_tensor_meta();
  } else {
    return false;
  }
}

/// Whether a tensor's values are what its memory, its strides and is_conj() say: not lazily negated, and not a tensor
/// of zeros without memory. Tensors with named dimensions are not plain either.
bool is_plain_or_conjugated(const Tensor& t) {
  constexpr c10::DispatchKeySet kLazy{c10::DispatchKey::Negative, c10::DispatchKey::ZeroTensor};
  return !t.key_set().has_any(kLazy) && !has_names(t);
}

/// The same, and not lazily conjugated.
bool is_plain(const Tensor& t) {
  return is_plain_or_conjugated(t) && !t.key_set().has(c10::DispatchKey::Conjugate);
}

/// Whether the operands of an Op::kMatmul are those of dot or addmv. Op::kMatmul stands for these ops here, but its own
/// shape rules accept more than theirs.
bool has_vectors(const Product& p) {
  return p.b->dim() == 1 && (p.a->dim() == 1 || p.a->dim() == 2);
}

/// Whether torch's flags allow TF32 in float32 matmuls.
bool allows_tf32() {
  return at::globalContext().float32Precision(at::Float32Backend::CUDA, at::Float32Op::MATMUL) ==
         at::Float32Precision::TF32;
}

/// Whether `out` may share memory with an operand.
bool overlaps(const Tensor& out, const Tensor& operand) {
  return out.is_alias_of(operand) && at::get_overlap_status(out, operand) != at::MemOverlapStatus::No;
}

/// is_product() for _int_mm. Torch never resizes its out=.
bool is_int8_product(const Product& p, const Tensor& out) {
  constexpr int64_t kMoreRows = 16, kMultiple = 8;
  const Tensor &a = *p.a, &b = *p.b;
  const auto fits = [&a](const Tensor& t, ScalarType type) {
    return t.device() == a.device() && t.scalar_type() == type && t.dim() == 2;
  };
  return a.device().is_cuda() && fits(a, ScalarType::Char) && fits(b, ScalarType::Char) && a.size(0) > kMoreRows &&
         a.size(1) == b.size(0) && a.size(1) % kMultiple == 0 && b.size(1) % kMultiple == 0 && a.size(1) > 0 &&
         b.size(1) > 0 &&
         (!out.defined() ||
          (fits(out, ScalarType::Int) && out.is_contiguous() && out.size(0) == a.size(0) && out.size(1) == b.size(1)));
}

/// Whether torch's own kernel would accept the devices and dtypes of the operands, and the report has a name for the
/// dtype. All other calls go to torch, uncounted: most are errors of the caller, which torch raises.
bool is_product(const Product& p, const Tensor& out) {
  if (p.is_int8) return is_int8_product(p, out);
  const c10::Device device = p.a->device();
  const ScalarType type = p.a->scalar_type(), out_type = p.out_dtype.value_or(type);
  const auto fits = [&](const Tensor& t, ScalarType expected, ScalarType other) {
    return t.device() == device && (t.scalar_type() == expected || t.scalar_type() == other);
  };
  const int32_t dtype = dtype_of(type), out_dtype = dtype_of(out_type);
  const bool is_widened = is_half(dtype) && out_type == ScalarType::Float;
  return dtype >= 0 && dtype <= static_cast<int32_t>(DType::kC128) && (out_dtype == dtype || is_widened) &&
         device.is_cuda() && fits(*p.b, type, type) && (p.c == nullptr || fits(*p.c, type, out_type)) &&
         (!out.defined() || fits(out, out_type, out_type)) && (p.op != Op::kMatmul || has_vectors(p));
}

/// Whether the call has an alpha and a beta that the plan needs: those of dtypes that a kernel may take.
bool has_scalars(const Product& p) {
  return p.c != nullptr && dtype_of(p.a->scalar_type()) <= static_cast<int32_t>(DType::kC64);
}

/// Whether alpha or beta is complex. Torch takes such ones for complex tensors alone. For these, one whose imaginary
/// part is zero counts as real.
bool has_complex_scalars(const Product& p) {
  const auto is_complex = [&p](const Scalar& x) {
    return x.isComplex() && !(p.a->is_complex() && x.toComplexDouble().imag() == 0);
  };
  return has_scalars(p) && (is_complex(*p.beta) || is_complex(*p.alpha));
}

/// Whether the plan may use the call's alpha and beta.
bool has_real_scalars(const Product& p) {
  return has_scalars(p) && !has_complex_scalars(p);
}

/// The reason why torch must compute the call, whatever the dispatcher would decide; HGEMM_LEFT_NOT where there is
/// none.
HgemmLeft reason_for_torch(const Product& p, const Tensor& out, double alpha, double beta) {
  if (!is_plain_or_conjugated(*p.a) || !is_plain_or_conjugated(*p.b) || (p.c != nullptr && !is_plain(*p.c)) ||
      (out.defined() && !is_plain(out))) {
    return HGEMM_LEFT_TENSOR;
  }
  if (has_complex_scalars(p)) return HGEMM_LEFT_SCALAR;
  if (alpha == 0) return HGEMM_LEFT_ALPHA;
  if (p.act != Activation::kNone && p.act != Activation::kRelu) return HGEMM_LEFT_GELU;
  if (out.defined() && (!out.is_contiguous() || overlaps(out, *p.a) || overlaps(out, *p.b) ||
                        (p.c != nullptr && beta != 0 && overlaps(out, *p.c)))) {
    return HGEMM_LEFT_OUT;
  }
  return HGEMM_LEFT_NOT;
}

/// The call as the plan takes it. It points to the tensors' own sizes and strides.
HgemmProduct question_of(const Product& p, const Tensor& out) {
  const ScalarType type = p.a->scalar_type();
  HgemmProduct product;
  product.a = operand(*p.a);
  product.b = operand(*p.b);
  product.c.ndim = product.d.ndim = -1;
  if (p.c != nullptr) product.c = operand(*p.c);
  if (out.defined()) product.d = operand(out);
  product.beta = has_real_scalars(p) ? p.beta->toDouble() : 1;
  product.alpha = has_real_scalars(p) ? p.alpha->toDouble() : 1;
  product.op = static_cast<int32_t>(p.op);
  product.act = static_cast<int32_t>(p.act);
  product.out_dtype = dtype_of(p.out_dtype.value_or(type));
  product.ordinal = p.a->device().index();
  product.in_backward = torch::autograd::get_current_graph_task_id() != -1;
  product.allows_tf32 = type == ScalarType::Float && allows_tf32();
  product.left = reason_for_torch(p, out, product.alpha, product.beta);
  product.conjugated = p.a->is_complex() ? (p.a->is_conj() != p.conjugates_a) | p.b->is_conj() << 1 : 0;
  TORCH_CHECK(aoti_torch_get_current_cuda_stream(product.ordinal, &product.stream) == 0,
              "hgemm: torch has no current CUDA stream");
  return product;
}

/// The contiguous copy of an operand's memory that a kernel needs; undefined where it needs none. The kernel conjugates
/// the elements of a tensor that is lazily conjugated.
Tensor copy_of(const Tensor& t, const HgemmCopy& copy) {
  if (copy.needed == 0) return {};
  return (t.is_conj() ? t.conj() : t)
      .as_strided(at::IntArrayRef(copy.sizes, copy.ndim), at::IntArrayRef(copy.strides, copy.ndim))
      .contiguous();
}

/// The device memory of a launch beside its operands. All but `d` may be freed right after the launch: torch's
/// allocator reuses memory in stream order.
struct Memory {
  Tensor d, a_copy, b_copy;
  c10::DataPtr workspace;
};

/// Allocates what the plan asks for, from torch's allocator of the moment. A new result is allocated if `out` is
/// undefined.
Memory allocate(const Product& p, const HgemmPlan& plan, const Tensor& out) {
  Memory memory;
  memory.d = out;
  if (!out.defined()) {
    const ScalarType type = p.out_dtype.value_or(p.a->scalar_type());
    memory.d = at::cuda::empty(at::IntArrayRef(plan.sizes, plan.ndim), type, at::kStrided, p.a->device(), std::nullopt,
                               std::nullopt);
  }
  memory.a_copy = copy_of(*p.a, plan.a);
  memory.b_copy = copy_of(*p.b, plan.b);
  if (plan.workspace > 0) {
    // c10::GetAllocator() would return torch's own allocator, even after change_current_allocator().
    memory.workspace = at::detail::getCUDAHooks().getCUDADeviceAllocator()->allocate(plan.workspace);
    TORCH_CHECK_WITH(OutOfMemoryError, memory.workspace.get() != nullptr, "CUDA out of memory. Tried to allocate ",
                     plan.workspace, " bytes.");
  }
  return memory;
}

void launch(const HgemmPlan& plan, const Memory& allocated, void* stream) {
  const Tensor &d = allocated.d, &a_copy = allocated.a_copy, &b_copy = allocated.b_copy;
  const HgemmMemory memory{.d = d.mutable_data_ptr(),
                           .a_copy = a_copy.defined() ? a_copy.mutable_data_ptr() : nullptr,
                           .b_copy = b_copy.defined() ? b_copy.mutable_data_ptr() : nullptr,
                           .workspace = allocated.workspace.get()};
  TORCH_CHECK(api->launch(&plan, &memory, stream) == 0, api->error());
}

/// Computes the call with a kernel of ours, if the plan names one; returns false where torch is to compute it. `out` is
/// the caller's tensor. If it is undefined, it becomes a new tensor.
bool compute(const Product& p, Tensor& out) {
  if (!is_product(p, out) || (has_complex_scalars(p) && !p.a->is_complex())) return false;
  const HgemmProduct product = question_of(p, out);
  HgemmPlan plan;
  const int planned = api->plan(&product, &plan);
  TORCH_CHECK(planned != HGEMM_REFUSED, api->error());
  if (planned != HGEMM_OURS) return false;
  const c10::DeviceGuard on_device(p.a->device());
  Memory memory;
  while (true) {
    try {
      memory = allocate(p, plan, out);
      break;
    } catch (const std::exception&) {  // another allocator than torch's raises errors of its own
      const int replanned = api->plan_with_less(&plan);
      if (replanned == HGEMM_TORCH) return false;
      if (replanned != HGEMM_OURS) throw;
    }
  }
  launch(plan, memory, product.stream);
  if (!out.defined()) out = std::move(memory.d);
  return true;
}

/// Computes a call into a new tensor. Where no kernel of ours does, `earlier` calls what ran the operator before the
/// override: another package's kernel, or `torchs`, torch's own function. `args` are the operator's arguments.
template <class Torchs, class... Args>
Tensor make(const Product& p, Earlier& earlier, KeySet keys, const Torchs& torchs, const Args&... args) {
  Tensor d;
  return api->active() && compute(p, d) ? d : earlier(keys, torchs, args...);
}

/// Computes a call into `out`, which is one of `args`.
template <class Torchs, class... Args>
Tensor& write(const Product& p, Tensor& out, Earlier& earlier, KeySet keys, const Torchs& torchs, Args&... args) {
  return api->active() && compute(p, out) ? out : earlier(keys, torchs, args...);
}

/// What ran an operator before the override. `kDoor` is the function below that overrides the operator.
template <auto kDoor>
Earlier earlier;

// TORCHS(name) is torch's own function of this name, with any of its overloads.
#define TORCHS(name) [](auto&... args) -> decltype(auto) { return at::cuda::name(args...); }

// The overrides of each op: functional, out=, in place, and the first two with a dtype for the result.

#define HGEMM_PRODUCT(name, kOp)                                                                                    \
  Tensor name##_dtype(KeySet keys, const Tensor& a, const Tensor& b, ScalarType dtype) {                            \
    return make({.op = kOp, .a = &a, .b = &b, .out_dtype = dtype}, earlier<name##_dtype>, keys, TORCHS(name), a, b, \
                dtype);                                                                                             \
  }                                                                                                                 \
  Tensor& name##_out(KeySet keys, const Tensor& a, const Tensor& b, Tensor& out) {                                  \
    return write({.op = kOp, .a = &a, .b = &b}, out, earlier<name##_out>, keys, TORCHS(name##_outf), a, b, out);    \
  }                                                                                                                 \
  Tensor& name##_dtype_out(KeySet keys, const Tensor& a, const Tensor& b, ScalarType dtype, Tensor& out) {          \
    return write({.op = kOp, .a = &a, .b = &b, .out_dtype = dtype}, out, earlier<name##_dtype_out>, keys,           \
                 TORCHS(name##_outf), a, b, dtype, out);                                                            \
  }
HGEMM_PRODUCT(mm, Op::kMm)
HGEMM_PRODUCT(bmm, Op::kBmm)
#undef HGEMM_PRODUCT

Tensor mm(KeySet keys, const Tensor& a, const Tensor& b) {
  return make({.op = Op::kMm, .a = &a, .b = &b}, earlier<mm>, keys, TORCHS(mm), a, b);
}
Tensor bmm(KeySet keys, const Tensor& a, const Tensor& b) {
  Earlier& before = earlier<bmm>;
  // at::cuda::bmm is not the kernel that torch registered from Python, but computes all but outer products as it does.
  static Earlier none;
  const bool is_direct = before.is_torchs_python() && (a.dim() != 3 || a.size(2) != 1);
  return make({.op = Op::kBmm, .a = &a, .b = &b}, is_direct ? none : before, keys, TORCHS(bmm), a, b);
}

// addmm, baddbmm and addmv have the same arguments.
#define HGEMM_ADD_PRODUCT(name, kOp)                                                                                   \
  Tensor name(KeySet keys, const Tensor& c, const Tensor& a, const Tensor& b, const Scalar& beta,                      \
              const Scalar& alpha) {                                                                                   \
    return make({.op = kOp, .a = &a, .b = &b, .c = &c, .beta = &beta, .alpha = &alpha}, earlier<name>, keys,           \
                TORCHS(name), c, a, b, beta, alpha);                                                                   \
  }                                                                                                                    \
  Tensor& name##_out(KeySet keys, const Tensor& c, const Tensor& a, const Tensor& b, const Scalar& beta,               \
                     const Scalar& alpha, Tensor& out) {                                                               \
    return write({.op = kOp, .a = &a, .b = &b, .c = &c, .beta = &beta, .alpha = &alpha}, out, earlier<name##_out>,     \
                 keys, TORCHS(name##_outf), c, a, b, beta, alpha, out);                                                \
  }                                                                                                                    \
  Tensor& name##_(KeySet keys, Tensor& c, const Tensor& a, const Tensor& b, const Scalar& beta, const Scalar& alpha) { \
    return write({.op = kOp, .a = &a, .b = &b, .c = &c, .beta = &beta, .alpha = &alpha}, c, earlier<name##_>, keys,    \
                 TORCHS(name##_), c, a, b, beta, alpha);                                                               \
  }
HGEMM_ADD_PRODUCT(addmm, Op::kAddmm)
HGEMM_ADD_PRODUCT(baddbmm, Op::kBaddbmm)
HGEMM_ADD_PRODUCT(addmv, Op::kMatmul)
#undef HGEMM_ADD_PRODUCT

#define HGEMM_ADD_PRODUCT(name, kOp)                                                                              \
  Tensor name##_dtype(KeySet keys, const Tensor& c, const Tensor& a, const Tensor& b, ScalarType dtype,           \
                      const Scalar& beta, const Scalar& alpha) {                                                  \
    return make({.op = kOp, .a = &a, .b = &b, .c = &c, .beta = &beta, .alpha = &alpha, .out_dtype = dtype},       \
                earlier<name##_dtype>, keys, TORCHS(name), c, a, b, dtype, beta, alpha);                          \
  }                                                                                                               \
  Tensor& name##_dtype_out(KeySet keys, const Tensor& c, const Tensor& a, const Tensor& b, ScalarType dtype,      \
                           const Scalar& beta, const Scalar& alpha, Tensor& out) {                                \
    return write({.op = kOp, .a = &a, .b = &b, .c = &c, .beta = &beta, .alpha = &alpha, .out_dtype = dtype}, out, \
                 earlier<name##_dtype_out>, keys, TORCHS(name##_outf), c, a, b, dtype, beta, alpha, out);         \
  }
HGEMM_ADD_PRODUCT(addmm, Op::kAddmm)
HGEMM_ADD_PRODUCT(baddbmm, Op::kBaddbmm)
#undef HGEMM_ADD_PRODUCT

Activation activation(bool gelu) {
  return gelu ? Activation::kGeluTanh : Activation::kRelu;
}

Tensor addmm_activation(KeySet keys, const Tensor& c, const Tensor& a, const Tensor& b, const Scalar& beta,
                        const Scalar& alpha, bool gelu) {
  return make({.op = Op::kAddmm, .a = &a, .b = &b, .c = &c, .beta = &beta, .alpha = &alpha, .act = activation(gelu)},
              earlier<addmm_activation>, keys, TORCHS(_addmm_activation), c, a, b, beta, alpha, gelu);
}
Tensor& addmm_activation_out(KeySet keys, const Tensor& c, const Tensor& a, const Tensor& b, const Scalar& beta,
                             const Scalar& alpha, bool gelu, Tensor& out) {
  return write({.op = Op::kAddmm, .a = &a, .b = &b, .c = &c, .beta = &beta, .alpha = &alpha, .act = activation(gelu)},
               out, earlier<addmm_activation_out>, keys, TORCHS(_addmm_activation_outf), c, a, b, beta, alpha, gelu,
               out);
}

Tensor dot(KeySet keys, const Tensor& a, const Tensor& b) {
  return make({.op = Op::kMatmul, .a = &a, .b = &b}, earlier<dot>, keys, TORCHS(dot), a, b);
}
Tensor vdot(KeySet keys, const Tensor& a, const Tensor& b) {
  return make({.op = Op::kMatmul, .a = &a, .b = &b, .conjugates_a = true}, earlier<vdot>, keys, TORCHS(vdot), a, b);
}

Tensor int_mm(KeySet keys, const Tensor& a, const Tensor& b) {
  return make({.op = Op::kMm, .a = &a, .b = &b, .out_dtype = ScalarType::Int, .is_int8 = true}, earlier<int_mm>, keys,
              TORCHS(_int_mm), a, b);
}
Tensor& int_mm_out(KeySet keys, const Tensor& a, const Tensor& b, Tensor& out) {
  return write({.op = Op::kMm, .a = &a, .b = &b, .out_dtype = ScalarType::Int, .is_int8 = true}, out,
               earlier<int_mm_out>, keys, TORCHS(_int_mm_outf), a, b, out);
}

/// An uninitialised matrix whose rows start at multiples of 16 bytes, for 16-bit elements.
Tensor padded_matrix(int64_t rows, int64_t columns, const Tensor& like) {
  const int64_t pitch = (columns + 7) / 8 * 8;
  return at::cuda::empty({rows, pitch}, like.scalar_type(), at::kStrided, like.device(), std::nullopt, std::nullopt)
      .as_strided({rows, columns}, {pitch, 1});
}

Tensor padded_copy(const Tensor& t) {
  return padded_matrix(t.size(0), t.size(1), t).copy_(t);
}

/// Computes a grouped product with a kernel of ours, if the plan names one; returns an undefined tensor where torch is
/// to compute it.
Tensor compute_grouped(const Tensor& a, const Tensor& b, const std::optional<Tensor>& offs,
                       std::optional<ScalarType> out_dtype) {
  if (!a.device().is_cuda() || b.device() != a.device()) return {};
  const bool has_offs = offs.has_value() && offs->defined();
  HgemmGrouped grouped{};
  grouped.a = operand(a);
  grouped.b = operand(b);
  grouped.offs.ndim = -1;
  if (has_offs) grouped.offs = operand(*offs);
  grouped.offs_is_int32 = has_offs && offs->scalar_type() == ScalarType::Int;
  grouped.offs_is_elsewhere = has_offs && offs->device() != a.device();
  grouped.out_dtype = dtype_of(out_dtype.value_or(a.scalar_type()));
  grouped.ordinal = a.device().index();
  grouped.allows_tf32 = a.scalar_type() == ScalarType::Float && allows_tf32();
  grouped.in_backward = torch::autograd::get_current_graph_task_id() != -1;
  if (!is_plain(a) || !is_plain(b) || (has_offs && !is_plain(*offs))) grouped.left = HGEMM_LEFT_TENSOR;
  TORCH_CHECK(aoti_torch_get_current_cuda_stream(grouped.ordinal, &grouped.stream) == 0, "hgemm: no current stream");
  HgemmGroupedPlan plan;
  const int planned = api->plan_grouped(&grouped, &plan);
  TORCH_CHECK(planned != HGEMM_REFUSED, api->error());
  if (planned != HGEMM_OURS) {
    Tensor d;
    if (plan.is_bmm != 0) compute({.op = Op::kBmm, .a = &a, .b = &b}, d);
    return d;
  }
  const c10::DeviceGuard on_device(a.device());
  Tensor d, a_copy, b_copy, transposed;
  for (;;) {
    // The first dimension is left out where the result has two.
    const int64_t whole[] = {plan.groups, plan.rows, plan.pitch};
    const size_t first = plan.groups == 0;
    try {
      d = at::cuda::empty(at::IntArrayRef(whole + first, 3 - first), a.scalar_type(), at::kStrided, a.device(),
                          std::nullopt, std::nullopt);
      if (plan.is_transposed != 0) transposed = padded_matrix(plan.columns, plan.rows, a);
      if (plan.copies_a != 0) a_copy = padded_copy(plan.is_transposed != 0 ? b.t() : plan.groups != 0 ? a.t() : a);
      if (plan.copies_b != 0) b_copy = padded_copy(b);
      break;
    } catch (const std::exception&) {  // another allocator than torch's raises errors of its own
      d = a_copy = b_copy = transposed = Tensor();
      const int again = api->plan_grouped_with_less(&plan);
      if (again == HGEMM_TORCH) return {};
      if (again != HGEMM_OURS) throw;
    }
  }
  const auto data = [](const Tensor& t) { return t.defined() ? t.mutable_data_ptr() : nullptr; };
  TORCH_CHECK(api->launch_grouped(&plan, data(d), data(a_copy), data(b_copy), grouped.stream) == 0, api->error());
  const int64_t sizes[] = {plan.groups, plan.rows, plan.columns}, strides[] = {plan.rows * plan.pitch, plan.pitch, 1};
  const size_t first = plan.groups == 0;
  const Tensor result = plan.pitch == plan.columns ? d
                                                   : d.as_strided(at::IntArrayRef(sizes + first, 3 - first),
                                                                  at::IntArrayRef(strides + first, 3 - first));
  if (plan.is_transposed == 0) return result;
  return transposed.copy_(result.t());
}

Tensor grouped_mm(KeySet keys, const Tensor& a, const Tensor& b, const std::optional<Tensor>& offs,
                  const std::optional<Tensor>& bias, std::optional<ScalarType> out_dtype) {
  if (api->active() && !bias.has_value()) {
    if (Tensor d = compute_grouped(a, b, offs, out_dtype); d.defined()) return d;
  }
  return earlier<grouped_mm>(keys, TORCHS(_grouped_mm), a, b, offs, bias, out_dtype);
}

/// The operators that are overridden, and torch's text of where they were registered, which all of them share.
std::vector<std::string> overridden;
std::string registered_here;

/// Overrides one operator by `kDoor`, and keeps what ran it before.
template <auto kDoor>
void door(torch::Library& library, const char* name) {
  earlier<kDoor>.look_up(name, kKey);
  library.impl(name, TORCH_FN(kDoor));
  overridden.emplace_back(name);
}

// Other operators need no override: aten::mv has no CUDA kernel and calls addmv, dot.out calls dot, addbmm calls addmm.
void implement(torch::Library& library) {
  door<mm>(library, "mm");
  door<mm_out>(library, "mm.out");
  door<mm_dtype>(library, "mm.dtype");
  door<mm_dtype_out>(library, "mm.dtype_out");
  door<bmm>(library, "bmm");
  door<bmm_out>(library, "bmm.out");
  door<bmm_dtype>(library, "bmm.dtype");
  door<bmm_dtype_out>(library, "bmm.dtype_out");
  door<addmm>(library, "addmm");
  door<addmm_out>(library, "addmm.out");
  door<addmm_>(library, "addmm_");
  door<addmm_dtype>(library, "addmm.dtype");
  door<addmm_dtype_out>(library, "addmm.dtype_out");
  door<baddbmm>(library, "baddbmm");
  door<baddbmm_out>(library, "baddbmm.out");
  door<baddbmm_>(library, "baddbmm_");
  door<baddbmm_dtype>(library, "baddbmm.dtype");
  door<baddbmm_dtype_out>(library, "baddbmm.dtype_out");
  door<addmv>(library, "addmv");
  door<addmv_out>(library, "addmv.out");
  door<addmv_>(library, "addmv_");
  door<addmm_activation>(library, "_addmm_activation");
  door<addmm_activation_out>(library, "_addmm_activation.out");
  door<dot>(library, "dot");
  door<vdot>(library, "vdot");
  door<grouped_mm>(library, "_grouped_mm");
  door<int_mm>(library, "_int_mm");
  door<int_mm_out>(library, "_int_mm.out");
}

/// Drops torch's warning that a registered kernel is overridden, which is intended here. Passes every other warning on.
class ExpectOverriding : public c10::WarningHandler {
 public:
  void process(const c10::Warning& warning) override {
    if (warning.msg().find("Overriding a previously registered kernel") == std::string::npos) before_->process(warning);
  }

 private:
  c10::WarningHandler* before_ = c10::WarningUtils::get_warning_handler();
};

void install() {
  ExpectOverriding handler;
  const c10::WarningUtils::WarningHandlerGuard guard(&handler);
  const c10::WarningUtils::WarnAlways
      always;  // torch warns only once in a process: this keeps the warning for another library's override
  // The registration is never undone: another thread may be running one of these functions.
  implement(*new torch::Library(torch::Library::IMPL, "aten", kKey, __FILE__, __LINE__));
  registered_here = kernel_at("mm", kKey).debug();
}

/// The operators whose matmuls do not reach this library, one line each, with where the other kernel was registered:
/// those for which another package has registered a kernel since, and those that torch itself has no CUDA kernel for,
/// because it computes them by the operators above, but another package has.
std::string hidden() {
  std::string lines;
  const auto add = [&lines](const std::string& name) {
    const std::string where = kernel_at(name, kKey).debug();
    if (where != registered_here) lines += "aten::" + name + ", " + where + "\n";
  };
  for (const std::string& name : overridden) add(name);
  for (const char* name : {"matmul", "linear"}) {
    const auto op = c10::Dispatcher::singleton().findSchemaOrThrow((std::string("aten::") + name).c_str(), "");
    if (op.hasKernelForDispatchKey(kKey)) add(name);
  }
  return lines;
}

}  // namespace
}  // namespace hgemm

#define HGEMM_EXPORT extern "C" __attribute__((visibility("default")))

/// Allocates a tensor with torch, and frees it again. Raises the error of torch's allocator, as torch would: the stable
/// ABI, by which torch/ allocates, drops the type of errors.
HGEMM_EXPORT void hgemm_aten_allocate(int64_t ndim, const int64_t* sizes, int32_t dtype, int32_t device_index) {
  at::cuda::empty(at::IntArrayRef(sizes, static_cast<size_t>(ndim)), static_cast<c10::ScalarType>(dtype), at::kStrided,
                  c10::Device(c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(device_index)), std::nullopt,
                  std::nullopt);
}

/// Registers the overrides. Returns null, or the reason why nothing was registered. Later calls return what the first
/// one did: an override that found itself would call itself for ever.
HGEMM_EXPORT const char* hgemm_aten_install(const HgemmGemmApi* table) {
  using namespace hgemm;
  if (table->sizes[0] != sizeof(HgemmGemmApi) || table->sizes[1] != sizeof(HgemmProduct) ||
      table->sizes[2] != sizeof(HgemmPlan) || table->sizes[3] != sizeof(HgemmGrouped) ||
      table->sizes[4] != sizeof(HgemmGroupedPlan)) {
    return "it was compiled for another version of this package";
  }
  static const std::string error = [table]() -> std::string {
    try {
      api = table;
      install();
      return "";
    } catch (const std::exception& e) {
      return e.what();
    }
  }();
  return error.empty() ? nullptr : error.c_str();
}

/// Returns the operators whose matmuls do not reach the override, because of another package, one line each. The text
/// stays valid until the next call. To be called with Python's lock held, because torch keeps a list of the kernels
/// that it hands out, without a lock of its own.
HGEMM_EXPORT const char* hgemm_aten_hidden() {
  static std::string text;
  text = hgemm::hidden();
  return text.c_str();
}
