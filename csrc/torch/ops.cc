// The CUDA implementations of the ops in hgemm_ops/ops/schema.py: checks, output, Problem, decision, launch.
#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/library.h>

#include <utility>

#include "core/activation.h"
#include "core/device.h"
#include "dispatch/choose.h"
#include "dispatch/devices.h"
#include "dispatch/explain.h"
#include "dispatch/invariance.h"
#include "dispatch/registry.h"
#include "torch/torch_gemm.h"

namespace hgemm {

Operands Call::operands(int max_batch_dims) const {
  Operands o;
  o.op = op;
  o.a = a.view;
  o.b = b.view;
  o.c = c ? &c.view : nullptr;
  o.alpha = alpha;
  o.beta = beta;
  o.act = static_cast<Activation>(act);
  o.out_dtype = gemm_dtype(result_dtype()).value_or(DType::kF32);
  o.max_batch_dims = max_batch_dims;
  return o;
}

namespace {

std::string text_of_dtype(int32_t code) {
  const auto dtype = gemm_dtype(code);
  return dtype ? std::string("torch.") + dtype_name(*dtype) : "dtype " + std::to_string(code);
}

std::string text_of_device(Device device) {
  if (device.type == aoti_torch_device_type_cuda()) return "cuda:" + std::to_string(device.index);
  if (device.type == aoti_torch_device_type_cpu()) return "cpu";
  return "device type " + std::to_string(device.type);
}

std::string prefix(const Call& call) {
  return std::string("hgemm::") + op_name(call.op) + ": ";
}

bool is_half(int32_t dtype) {
  return gemm_dtype(dtype).value_or(DType::kF32) != DType::kF32;
}

/// Whether the dispatcher is asked at all: a kernel that was asked for serves the half types, or what else it takes;
/// everything else is torch's.
bool is_for_kernels(const Call& call) {
  const auto dtype = gemm_dtype(call.a.dtype);
  if (!dtype || is_half(call.a.dtype) || call.variant < 0) return dtype.has_value();
  return (variant(static_cast<int>(call.variant)).dtypes >> static_cast<int>(*dtype) & 1u) != 0;
}

/// Of two arguments that must be on one device and, unless their dtypes have a rule of their own, of one dtype.
void check_alike(const Call& call, const Tensor& x, const char* x_name, const Tensor& y, const char* y_name,
                 bool dtypes = true) {
  const auto differ = [&](const char* what, const std::string& of_x, const std::string& of_y) {
    fail(prefix(call) + x_name + " (" + of_x + ") and " + y_name + " (" + of_y + "): " + what + " must match");
  };
  if (!(x.device == y.device)) differ("devices", text_of_device(x.device), text_of_device(y.device));
  if (dtypes && x.dtype != y.dtype) differ("dtypes", text_of_dtype(x.dtype), text_of_dtype(y.dtype));
}

/// All that does not depend on shapes.
void check_arguments(const Call& call) {
  const auto [a_name, b_name, c_name] = argument_names(call.op);
  check_alike(call, call.a, a_name, call.b, b_name);
  const auto require = [&](const char* name, int64_t value, int64_t least, int64_t most, const char* meaning) {
    if (value >= least && value <= most) return;
    fail(prefix(call) + name + " must be " + meaning + ", got " + std::to_string(value));
  };
  require("variant", call.variant, kTorch, variant_count() - 1, "-2 (torch), -1 (auto) or an index into variants()");
  require("numerics", call.numerics, kAuto, static_cast<int64_t>(NumericsMode::kBatchInvariantOrRaise),
          "0 (fast), 1 (batch_invariant), 2 (batch_invariant_or_raise) or -1 (as by default)");
  require("float32", call.float32, kAuto, static_cast<int64_t>(Float32Mode::kSplit),
          "0 (strict), 1 (split) or -1 (as by default)");
  const int32_t dtype = call.a.dtype, result_dtype = call.result_dtype();
  if (result_dtype != dtype && !(is_half(dtype) && gemm_dtype(result_dtype) == DType::kF32)) {
    fail(prefix(call) + "out_dtype must be the dtype of " + a_name + " (" + text_of_dtype(dtype) +
         "), or torch.float32 for half inputs, got " + text_of_dtype(result_dtype));
  }
  require("act", call.act, 0, static_cast<int64_t>(Activation::kSilu),
          "one of 0 (none), 1 (relu), 2 (gelu), 3 (gelu_tanh), 4 (silu)");
  if (!call.c) return;
  if (is_linear(call.op)) return check_alike(call, call.a, a_name, call.c, c_name);
  check_alike(call, call.c, c_name, call.a, a_name, false);
  if (call.c.dtype != dtype && call.c.dtype != result_dtype) {
    fail(prefix(call) + c_name + " (" + text_of_dtype(call.c.dtype) + ") must have the dtype of " + a_name + " (" +
         text_of_dtype(dtype) + ") or of the result (" + text_of_dtype(result_dtype) + ")");
  }
}

/// `out` is never resized.
void check_out(const Call& call, const Canonical& canonical) {
  const TensorView& out = call.out.view;
  if (out.ndim != canonical.out_ndim || !std::equal(out.sizes, out.sizes + out.ndim, canonical.out_sizes)) {
    fail(prefix(call) + "out " + shape_text(out.ndim, out.sizes) + " must have the result's shape " +
         shape_text(canonical.out_ndim, canonical.out_sizes));
  }
  const auto refuse = [&](const std::string& out, const char* requirement, const std::string& wanted) {
    fail(prefix(call) + "out (" + out + ") must " + requirement + " " + wanted);
  };
  const int32_t dtype = call.result_dtype();
  if (call.out.dtype != dtype) refuse(text_of_dtype(call.out.dtype), "have the result's dtype", text_of_dtype(dtype));
  if (!(call.out.device == call.a.device)) {
    refuse(text_of_device(call.out.device), "be on the inputs' device", text_of_device(call.a.device));
  }
}

/// Makes the tensors' device the current one for the time of a call, without cost where it is already.
class OnDevice {
 public:
  explicit OnDevice(Device device) {
    int32_t current = -1;
    check(aoti_torch_get_current_device_index(&current), "get_current_device_index");
    if (current != device.index) guard_.emplace(device.index);
  }

 private:
  std::optional<torch::stable::accelerator::DeviceGuard> guard_;
};

void launch(const Call& call, Canonical& canonical, const DeviceFacts& facts, int id) {
  Problem& p = canonical.problem;
  // May be freed after the launch: torch's allocator reuses memory in the order of the stream.
  Handle a_copy, b_copy, workspace;
  if (canonical.copy_a.needed) {
    a_copy = contiguous_copy(call.a, canonical.copy_a);
    p.a.data = mutable_data(a_copy.get());
  }
  if (canonical.copy_b.needed) {
    b_copy = contiguous_copy(call.b, canonical.copy_b);
    p.b.data = mutable_data(b_copy.get());
  }
  const Variant& v = variant(id);
  if (const auto bytes = static_cast<int64_t>(v.workspace(p, facts)); bytes > 0) {
    workspace = empty_contiguous(1, &bytes, aoti_torch_dtype_uint8(), call.a.device);
  }
  void* const scratch = workspace ? mutable_data(workspace.get()) : nullptr;
  if (const Status status = v.launch(p, facts, scratch, current_stream(call.a.device)); status != 0) {
    fail(prefix(call) + v.name + " failed to launch: " + status_string(status));
  }
}

/// Who serves a call whose result is not empty: kTorch, or a kernel's id, for which `facts` is filled in. What the
/// problem has no address of yet will be a new tensor, whose alignment is the best.
int decide(const Call& call, const Problem& p, DeviceFacts* facts) {
  if (!is_for_kernels(call)) {
    if (must_be_ours(p)) fail(unheld(p, "no kernel of ours takes " + text_of_dtype(call.a.dtype)));
    return kTorch;
  }
  const auto asked = static_cast<int>(call.variant);
  const DeviceFacts* const usable = usable_device(call.a.device.index);
  if (usable == nullptr) {
    if (must_be_ours(p)) fail(unheld(p, fault_of_device(call.a.device.index)));
    if (asked < 0) return kTorch;
    fail(prefix(call) + variant_name(asked) + " cannot run on " + text_of_device(call.a.device) + ": " +
         fault_of_device(call.a.device.index));
  }
  *facts = *usable;
  const Decision decision = choose(p, *facts, call.a.device.index, asked);
  if (decision.variant == kRefused) fail(refusal(p, *facts, asked == kAuto ? standing_choice(p) : asked));
  return decision.variant;
}

/// Has `id`, which decide() named, write the result.
void compute(const Call& call, Canonical& canonical, const DeviceFacts& facts, int id, Destination d,
             Destination pre_activation) {
  const OnDevice on_device(call.a.device);
  if (id == kTorch) return torch_gemm(call, canonical, d, pre_activation);
  canonical.problem.d.data = d.data;
  canonical.problem.pre_activation = pre_activation.data;
  launch(call, canonical, facts, id);
}

void decide_and_compute(const Call& call, Canonical& canonical, Destination d, Destination pre_activation) {
  if (canonical.empty()) return;
  canonical.problem.d.data = d.data;
  canonical.problem.pre_activation = pre_activation.data;
  DeviceFacts facts;
  const int id = decide(call, canonical.problem, &facts);
  compute(call, canonical, facts, id, d, pre_activation);
}

Handle allocate_result(const Call& call, const Canonical& canonical, Destination* d) {
  Handle result = empty_contiguous(canonical.out_ndim, canonical.out_sizes, call.result_dtype(), call.a.device);
  *d = {result.get(), mutable_data(result.get())};
  return result;
}

/// What torch's flags say of TF32 is not to be had here: unasked, float32 is torch's.
Float32Mode float32_of(const Call& call) {
  if (call.float32 != kAuto) return static_cast<Float32Mode>(call.float32);
  return standing_float32() == Float32Mode::kSplit ? Float32Mode::kSplit : Float32Mode::kTf32;
}

void check_and_canonicalize(const Call& call, Canonical* canonical) {
  check_arguments(call);
  if (!canonicalize(call.operands(/*max_batch_dims=*/2), canonical)) fail(canonical->error);
  ask_for(call.numerics == kAuto ? standing_numerics() : static_cast<NumericsMode>(call.numerics), float32_of(call),
          &canonical->problem);
}

/// `pre_activation`: receives the argument of the activation, if it is not null.
Handle run(const Call& call, Handle* pre_activation = nullptr) {
  Canonical canonical;
  check_and_canonicalize(call, &canonical);
  Destination d, saved;
  Handle result = allocate_result(call, canonical, &d);
  if (pre_activation != nullptr) *pre_activation = allocate_result(call, canonical, &saved);
  decide_and_compute(call, canonical, d, saved);
  return result;
}

/// The bytes from a tensor's first to its last element.
struct Extent {
  uintptr_t begin, end;
};

Extent extent_of(const Tensor& t) {
  const auto begin = reinterpret_cast<uintptr_t>(t.view.data);
  int64_t last = 0;
  for (int i = 0; i < t.view.ndim; ++i) {
    if (t.view.sizes[i] == 0) return {begin, begin};
    last += (t.view.sizes[i] - 1) * t.view.strides[i];
  }
  return {begin, begin + static_cast<uintptr_t>(last + 1) * aoti_torch_dtype_element_size(t.dtype)};
}

bool overlap(const Tensor& x, const Tensor& y) {
  const Extent ex = extent_of(x), ey = extent_of(y);
  return ex.begin < ey.end && ey.begin < ex.end;
}

/// Whether `out` can be written directly: contiguous, and no operand is read from it.
bool is_destination(const Call& call) {
  bool contiguous = false;
  check(aoti_torch_is_contiguous(call.out.handle.get(), &contiguous), "is_contiguous");
  return contiguous && !overlap(call.out, call.a) && !overlap(call.out, call.b) &&
         !(call.c && overlap(call.out, call.c));
}

void run_into_out(const Call& call) {
  Canonical canonical;
  check_and_canonicalize(call, &canonical);
  check_out(call, canonical);
  const AtenTensorHandle out = call.out.handle.get();
  if (is_destination(call)) return decide_and_compute(call, canonical, {out, mutable_data(out)}, {});
  Destination d;
  const Handle result = allocate_result(call, canonical, &d);
  decide_and_compute(call, canonical, d, {});
  check(aoti_torch_copy_(out, result.get(), 0), "copy_");
}

/// Takes the arguments off the stack in the order of the schema. Every tensor there is an owned reference.
class Arguments {
 public:
  explicit Arguments(StableIValue* stack) : next_(stack) {}

  Tensor tensor() { return inspect(Handle(take<AtenTensorHandle>())); }
  Tensor optional_tensor() {
    const auto handle = take<std::optional<AtenTensorHandle>>();
    return handle ? inspect(Handle(*handle)) : Tensor();
  }
  template <class T>
  T take() {
    return torch::stable::detail::to<T>(*next_++);
  }

 private:
  StableIValue* next_;
};

Call read_call(Op op, bool has_out, StableIValue* stack) {
  Arguments arguments(stack);
  Call call;
  call.op = op;
  const bool has_input = op == Op::kAddmm || op == Op::kBaddbmm;
  if (has_input) call.c = arguments.tensor();
  call.a = arguments.tensor();
  call.b = arguments.tensor();
  if (has_input) {
    call.beta = arguments.take<double>();
    call.alpha = arguments.take<double>();
  }
  if (is_linear(op)) {
    call.c = arguments.optional_tensor();
    call.act = arguments.take<int64_t>();
  }
  call.out_dtype = arguments.take<std::optional<int32_t>>();
  call.variant = arguments.take<std::optional<int64_t>>().value_or(kAuto);
  call.numerics = arguments.take<std::optional<int64_t>>().value_or(kAuto);
  call.float32 = arguments.take<std::optional<int64_t>>().value_or(kAuto);
  if (has_out) call.out = arguments.tensor();
  return call;
}

StableIValue give(Handle handle) {
  return torch::stable::detail::from(handle.release());
}

// Kernels in the calling convention of the stable ABI. Written out rather than made by TORCH_BOX, whose shared_ptr
// tensors cost two allocations each.

template <Op kOp>
void functional(StableIValue* stack, uint64_t, uint64_t) {
  stack[0] = give(run(read_call(kOp, false, stack)));
}

template <Op kOp>
void out_variant(StableIValue* stack, uint64_t, uint64_t) {
  Call call = read_call(kOp, true, stack);
  run_into_out(call);
  stack[0] = give(std::move(call.out.handle));
}

void linear_save(StableIValue* stack, uint64_t, uint64_t) {
  Handle saved;
  stack[0] = give(run(read_call(Op::kLinearSave, false, stack), &saved));
  stack[1] = give(std::move(saved));
}

/// The gate as passes over a product `y` (rows, 2 n), by which the kernel that computed it had no way to gate.
void gate_product(const Call& call, Activation act, Destination y, Destination d, int64_t rows, int64_t n) {
  const auto dtype = gemm_dtype(call.a.dtype);
  if (!dtype || usable_device(call.a.device.index) == nullptr) return torch_gate(act, y, d, rows, n);
  const OnDevice on_device(call.a.device);
  if (const Status status = launch_gate(y.data, d.data, rows, n, *dtype, act, current_stream(call.a.device))) {
    fail(prefix(call) + "the gate failed to launch: " + status_string(status));
  }
}

void linear_gated(StableIValue* stack, uint64_t, uint64_t) {
  Arguments arguments(stack);
  Call call;
  call.op = Op::kLinearGated;
  call.a = arguments.tensor();
  call.b = arguments.tensor();
  call.act = arguments.take<int64_t>();
  call.variant = arguments.take<std::optional<int64_t>>().value_or(kAuto);
  call.numerics = arguments.take<std::optional<int64_t>>().value_or(kAuto);
  call.float32 = arguments.take<std::optional<int64_t>>().value_or(kAuto);
  if (call.b.view.ndim != 2 || call.b.view.sizes[0] % 2 != 0) {
    fail(prefix(call) + "weight " + shape_text(call.b.view.ndim, call.b.view.sizes) +
         " must be 2-D with an even number of rows");
  }
  Canonical canonical;
  check_and_canonicalize(call, &canonical);
  // The product is decided on, and where need be computed, by itself.
  Problem& p = canonical.problem;
  const auto act = static_cast<Activation>(std::exchange(call.act, 0));
  p.act = Activation::kNone;
  const int ndim = canonical.out_ndim;
  int64_t sizes[kMaxDims], rows = 1;
  for (int i = 0; i < ndim - 1; ++i) rows *= sizes[i] = canonical.out_sizes[i];
  const int64_t n = sizes[ndim - 1] = canonical.out_sizes[ndim - 1] / 2;
  Handle result = empty_contiguous(ndim, sizes, call.a.dtype, call.a.device);
  if (!canonical.empty()) {
    const Destination d{result.get(), mutable_data(result.get())};
    DeviceFacts facts;
    const int id = decide(call, p, &facts);
    if (id >= 0 && variant(id).gates != nullptr && variant(id).gates(p)) {
      p.gated = true;
      p.act = act;
      p.d.row_stride = n;
      compute(call, canonical, facts, id, d, {});
    } else {
      Destination y;
      const Handle both = allocate_result(call, canonical, &y);
      compute(call, canonical, facts, id, y, {});
      gate_product(call, act, y, d, rows, n);
    }
  }
  stack[0] = give(std::move(result));
}

template <Op kOp>
void implement(torch::stable::detail::StableLibrary& library) {
  const std::string name = op_name(kOp);
  library.impl(name.c_str(), functional<kOp>);
  library.impl((name + ".out").c_str(), out_variant<kOp>);
}

}  // namespace
}  // namespace hgemm

STABLE_TORCH_LIBRARY_IMPL(hgemm, CUDA, library) {
  using hgemm::Op;
  hgemm::implement<Op::kMatmul>(library);
  hgemm::implement<Op::kMm>(library);
  hgemm::implement<Op::kBmm>(library);
  hgemm::implement<Op::kAddmm>(library);
  hgemm::implement<Op::kBaddbmm>(library);
  hgemm::implement<Op::kLinear>(library);
  library.impl("linear_save", hgemm::linear_save);
  library.impl("linear_gated", hgemm::linear_gated);
}
