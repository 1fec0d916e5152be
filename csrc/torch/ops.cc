// The CUDA implementations of the ops in hgemm_ops/ops/schema.py: they turn torch's tensors into a request, and
// allocate and launch what the plan for it says (dispatch/plan.h).
#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/library.h>

#include <algorithm>
#include <exception>
#include <set>
#include <string>
#include <utility>

#include "core/activation.h"
#include "core/device.h"
#include "dispatch/c_api.h"
#include "dispatch/context.h"
#include "dispatch/devices.h"
#include "dispatch/grouped.h"
#include "dispatch/plan.h"
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
  const auto known = gemm_dtype(dtype);
  return known == DType::kF16 || known == DType::kBF16;
}

/// Fails unless two arguments are on one device and, if `dtypes`, have one dtype.
void check_alike(const Call& call, const Tensor& x, const char* x_name, const Tensor& y, const char* y_name,
                 bool dtypes = true) {
  const auto differ = [&](const char* what, const std::string& of_x, const std::string& of_y) {
    fail(prefix(call) + x_name + " (" + of_x + ") and " + y_name + " (" + of_y + "): " + what + " must match");
  };
  if (!(x.device == y.device)) differ("devices", text_of_device(x.device), text_of_device(y.device));
  if (dtypes && x.dtype != y.dtype) differ("dtypes", text_of_dtype(x.dtype), text_of_dtype(y.dtype));
}

/// Checks everything that does not depend on shapes.
void check_arguments(const Call& call) {
  const auto [a_name, b_name, c_name] = argument_names(call.op);
  check_alike(call, call.a, a_name, call.b, b_name);
  const auto require = [&](const char* name, int64_t value, int64_t least, int64_t most, const char* meaning) {
    if (value >= least && value <= most) return;
    fail(prefix(call) + name + " must be " + meaning + ", got " + std::to_string(value));
  };
  require("variant", call.variant, kTorch, variant_count() - 1, "-2 (torch), -1 (auto) or an index into variants()");
  require("numerics", call.numerics, kAuto, static_cast<int64_t>(NumericsMode::kBatchInvariantOrRaise),
          "0 (fast), 1 (batch_invariant), 2 (batch_invariant_or_raise) or -1 (the default)");
  require("float32", call.float32, kAuto, static_cast<int64_t>(Float32Mode::kSplit),
          "0 (strict), 1 (split) or -1 (the default)");
  const int32_t dtype = call.a.dtype, result_dtype = call.result_dtype();
  if (result_dtype != dtype && !(is_half(dtype) && gemm_dtype(result_dtype) == DType::kF32)) {
    fail(prefix(call) + "out_dtype must be the dtype of " + a_name + " (" + text_of_dtype(dtype) +
         "), or torch.float32 for float16 and bfloat16 inputs, got " + text_of_dtype(result_dtype));
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

/// Checks the dtype and device of `out`. The plan checks its shape.
void check_out(const Call& call) {
  const auto refuse = [&](const std::string& out, const char* requirement, const std::string& wanted) {
    fail(prefix(call) + "out (" + out + ") must " + requirement + " " + wanted);
  };
  const int32_t dtype = call.result_dtype();
  if (call.out.dtype != dtype) refuse(text_of_dtype(call.out.dtype), "have the result's dtype", text_of_dtype(dtype));
  if (!(call.out.device == call.a.device)) {
    refuse(text_of_device(call.out.device), "be on the inputs' device", text_of_device(call.a.device));
  }
}

/// Makes the tensors' device the current one for the time of a call. It costs nothing where the device is current
/// already.
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

/// Fills `plan` for a call whose arguments were checked. Throws where the shapes do not fit, or neither a kernel nor
/// torch may compute the call. `out`: where the kernel is to write the result; null: to new memory.
///
/// The stable ABI does not have torch's flags for TF32, so the plan assumes that they allow it: torch computes a
/// float32 call unless the call names a float32 mode, or the context or the default asks for split.
void plan_call(const Call& call, const TensorView* out, bool saves_pre_activation, Plan* plan) {
  make_plan({.operands = call.operands(/*max_batch_dims=*/2),
             .out = out,
             .fixed_out = call.out ? &call.out.view : nullptr,
             .saves_pre_activation = saves_pre_activation,
             .has_known_dtype = gemm_dtype(call.a.dtype).has_value(),
             .ordinal = call.a.device.index,
             .stream = current_stream(call.a.device),
             .variant = static_cast<int>(call.variant),
             .numerics = static_cast<int>(call.numerics),
             .float32 = static_cast<int>(call.float32),
             .allows_tf32 = true},
            plan);
  if (plan->outcome == Outcome::kInvalid || plan->outcome == Outcome::kRefused) fail(plan->message);
}

void* data_of(const Handle& handle) {
  return handle ? mutable_data(handle.get()) : nullptr;
}

/// The device memory of a launch beside operands and results. It may be freed right after the launch: torch's allocator
/// reuses memory in stream order.
struct Scratch {
  Handle a_copy, b_copy, workspace;
};

/// Copies an operand where a kernel needs that. Returns false where there is no memory.
bool copy_operand(const Tensor& t, const Copy& copy, Handle* out) {
  if (!copy.needed) return true;
  *out = try_empty_contiguous(copy.ndim, copy.sizes, t.dtype, t.device);
  if (*out) *out = contiguous_copy(t, copy, std::move(*out));
  return *out != nullptr;
}

/// Allocates what a kernel needs. Returns false where there is no memory.
bool allocate(const Call& call, const Canonical& canonical, int64_t workspace, Scratch* scratch) {
  if (!copy_operand(call.a, canonical.copy_a, &scratch->a_copy)) return false;
  if (!copy_operand(call.b, canonical.copy_b, &scratch->b_copy)) return false;
  if (workspace == 0) return true;
  scratch->workspace = try_empty_contiguous(1, &workspace, aoti_torch_dtype_uint8(), call.a.device);
  return scratch->workspace && data_of(scratch->workspace) != nullptr;
}

/// Computes the result with the plan's kernel. Returns false, with nothing launched, where the kernel's memory is not
/// to be had, and torch is to compute the call.
bool launch_kernel(const Call& call, const Plan& plan, Destination d, Destination pre_activation) {
  Job job = plan.job;
  int64_t workspace = plan.workspace;
  Scratch scratch;
  while (!allocate(call, plan.canonical, workspace, &scratch)) {
    scratch = {};
    const int64_t wanted = workspace;
    const Outcome outcome = plan_with_less(&job, &workspace);
    if (outcome == Outcome::kTorch) return false;
    if (outcome == Outcome::kOurs) continue;
    raise_out_of_memory(1, &wanted, aoti_torch_dtype_uint8(), call.a.device);
    fail(std::string("CUDA out of memory. hgemm: no memory for the workspace or the copies of operands of ") +
         variant(job.variant).name);
  }
  const Memory memory{.d = d.data,
                      .pre_activation = pre_activation.data,
                      .a_copy = data_of(scratch.a_copy),
                      .b_copy = data_of(scratch.b_copy),
                      .workspace = data_of(scratch.workspace)};
  if (const Status status = launch(job, memory, current_stream(call.a.device)); status != 0) {
    fail(launch_error(job, status));
  }
  return true;
}

/// Computes the result with the plan's kernel, or with torch.
void compute(const Call& call, const Plan& plan, Destination d, Destination pre_activation) {
  if (plan.canonical.empty()) return;
  const OnDevice on_device(call.a.device);
  if (plan.outcome == Outcome::kOurs && launch_kernel(call, plan, d, pre_activation)) return;
  torch_gemm(call, plan.canonical, d, pre_activation);
}

Handle allocate_result(const Call& call, const Canonical& canonical, Destination* d) {
  Handle result = empty_contiguous(canonical.out_ndim, canonical.out_sizes, call.result_dtype(), call.a.device);
  *d = {result.get(), mutable_data(result.get())};
  return result;
}

/// Computes a call into a new tensor. If `pre_activation` is not null, it receives the argument of the activation.
Handle run(const Call& call, Handle* pre_activation = nullptr) {
  check_arguments(call);
  Plan plan;
  plan_call(call, nullptr, pre_activation != nullptr, &plan);
  Destination d, saved;
  Handle result = allocate_result(call, plan.canonical, &d);
  if (pre_activation != nullptr) *pre_activation = allocate_result(call, plan.canonical, &saved);
  compute(call, plan, d, saved);
  return result;
}

/// The range of addresses from a tensor's first to its last element.
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

/// Whether a kernel can write to `out` directly: it is contiguous, and overlaps no operand.
bool is_destination(const Call& call) {
  bool contiguous = false;
  check(aoti_torch_is_contiguous(call.out.handle.get(), &contiguous), "is_contiguous");
  return contiguous && !overlap(call.out, call.a) && !overlap(call.out, call.b) &&
         !(call.c && overlap(call.out, call.c));
}

void run_into_out(const Call& call) {
  check_arguments(call);
  check_out(call);
  const bool is_direct = is_destination(call);
  Plan plan;
  plan_call(call, is_direct ? &call.out.view : nullptr, false, &plan);
  const AtenTensorHandle out = call.out.handle.get();
  if (is_direct) return compute(call, plan, {out, mutable_data(out)}, {});
  Destination d;
  const Handle result = allocate_result(call, plan.canonical, &d);
  compute(call, plan, d, {});
  check(aoti_torch_copy_(out, result.get(), 0), "copy_");
}

/// Takes the arguments off the stack, in the order of the schema. Every tensor on the stack is an owned reference.
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

// The ops in the calling convention of the stable ABI. They are written out, because TORCH_BOX makes tensors with
// shared_ptr, which cost two allocations each.

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

/// Applies the gate in passes of its own: d (rows, n) = act(y[:, :n]) * y[:, n:], for y (rows, 2 n) of a kernel that
/// could not apply the gate itself.
void gate_product(const Call& call, Activation act, Destination y, Destination d, int64_t rows, int64_t n) {
  const auto dtype = activation_dtype(call.a.dtype);
  if (!dtype || usable_device(call.a.device.index) == nullptr) {
    return torch_gate(act, call.a.device, y, d, rows, n);
  }
  const OnDevice on_device(call.a.device);
  if (const Status status = launch_gate(y.data, d.data, rows, n, *dtype, act, current_stream(call.a.device))) {
    fail(prefix(call) + "the kernel for activation and gate failed to launch: " + status_string(status));
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
  check_arguments(call);
  Plan plan;
  plan_call(call, nullptr, false, &plan);
  const auto act = static_cast<Activation>(std::exchange(call.act, 0));  // torch computes only the matmul
  const int ndim = plan.canonical.out_ndim;
  int64_t sizes[kMaxDims], rows = 1;
  for (int i = 0; i < ndim - 1; ++i) rows *= sizes[i] = plan.canonical.out_sizes[i];
  const int64_t n = sizes[ndim - 1] = plan.canonical.out_sizes[ndim - 1] / 2;
  Handle result = empty_contiguous(ndim, sizes, call.a.dtype, call.a.device);
  if (!plan.canonical.empty()) {
    const Destination d{result.get(), mutable_data(result.get())};
    const OnDevice on_device(call.a.device);
    if (!plan.gates || !launch_kernel(call, plan, d, {})) {
      if (plan.gates) plan.outcome = Outcome::kTorch;
      Destination y;
      const Handle both = allocate_result(call, plan.canonical, &y);
      compute(call, plan, y, {});
      gate_product(call, act, y, d, rows, n);
    }
  }
  stack[0] = give(std::move(result));
}

/// hgemm::gate: the second half of linear_gated, for the results of other products.
void gate(StableIValue* stack, uint64_t, uint64_t) {
  Arguments arguments(stack);
  Call call;
  call.op = Op::kLinearGated;
  call.a = arguments.tensor();
  const int64_t act = arguments.take<int64_t>();
  const TensorView& both = call.a.view;
  const auto require = [](bool condition, const std::string& message) {
    if (!condition) fail("hgemm::gate: " + message);
  };
  require(act >= 0 && act <= static_cast<int64_t>(Activation::kSilu),
          "act must be one of 0 (none), 1 (relu), 2 (gelu), 3 (gelu_tanh), 4 (silu), got " + std::to_string(act));
  bool contiguous = false;
  check(aoti_torch_is_contiguous(call.a.handle.get(), &contiguous), "is_contiguous");
  require(both.ndim == 2 && both.sizes[1] % 2 == 0 && contiguous,
          "both " + shape_text(both.ndim, both.sizes) + " must be 2-D and contiguous, with an even number of columns");
  const int64_t rows = both.sizes[0], n = both.sizes[1] / 2, sizes[] = {rows, n};
  Handle result = empty_contiguous(2, sizes, call.a.dtype, call.a.device);
  if (rows > 0 && n > 0) {
    const OnDevice on_device(call.a.device);
    gate_product(call, static_cast<Activation>(act), {call.a.handle.get(), const_cast<void*>(both.data)},
                 {result.get(), mutable_data(result.get())}, rows, n);
  }
  stack[0] = give(std::move(result));
}

/// The arguments of a grouped product.
struct GroupedCall {
  Tensor a, b, offs;                 // offs may be empty
  std::optional<int32_t> out_dtype;  // torch's code of a dtype
  int64_t variant = kAuto;
  Tensor bias;      // grouped_linear: may be empty
  int64_t act = 0;  // grouped_linear
  bool gated = false;

  int32_t result_dtype() const { return out_dtype.value_or(a.dtype); }
};

/// Calls aten::_grouped_mm. In no context: the call has been counted, and must not come back through the override.
Handle call_torchs_grouped_mm(const GroupedCall& call, bool in_no_context) {
  const auto from = [](auto value) { return torch::stable::detail::from(value); };
  std::optional<AtenTensorHandle> offs;
  if (call.offs) offs = new_reference(call.offs.handle.get());
  StableIValue stack[] = {from(new_reference(call.a.handle.get())), from(new_reference(call.b.handle.get())),
                          from(offs), from(std::optional<AtenTensorHandle>()), from(call.out_dtype)};
  const HgemmSettings before = detail::thread_settings;
  if (in_no_context) {
    detail::thread_settings = kNoSettings;
    detail::thread_settings.variant = kOutside;
  }
  const AOTITorchError status = torch_call_dispatcher("aten::_grouped_mm", "", stack, TORCH_ABI_VERSION);
  detail::thread_settings = before;
  check(status, "_grouped_mm");
  return Handle(torch::stable::detail::to<AtenTensorHandle>(stack[0]));
}

/// A new 16-bit matrix whose rows start at multiples of 16 bytes. Null where there is no memory.
Handle try_padded_matrix(int64_t rows, int64_t columns, int32_t dtype, Device device) {
  const int64_t pitch = grouped_pitch(columns, DType::kBF16), whole[] = {rows, pitch}, sizes[] = {rows, columns};
  const int64_t strides[] = {pitch, 1};
  const Handle base = try_empty_contiguous(2, whole, dtype, device);
  return base ? reinterpret(base.get(), 2, sizes, strides) : nullptr;
}

/// Copies the matrix of these strides in `source` to `to`.
void copy_matrix(const Handle& to, AtenTensorHandle source, int64_t rows, int64_t columns, int64_t row_stride,
                 int64_t col_stride) {
  const int64_t sizes[] = {rows, columns}, from[] = {row_stride, col_stride};
  check(aoti_torch_copy_(to.get(), reinterpret(source, 2, sizes, from).get(), 0), "copy_");
}

/// A copy of a 2-D matrix `t`, or of its transpose, whose rows start at multiples of 16 bytes. Null where there is no
/// memory.
Handle try_padded_copy(const Tensor& t, bool transposed) {
  const int64_t rows = t.view.sizes[transposed], columns = t.view.sizes[!transposed];
  Handle copy = try_padded_matrix(rows, columns, t.dtype, t.device);
  if (copy) copy_matrix(copy, t.handle.get(), rows, columns, t.view.strides[transposed], t.view.strides[!transposed]);
  return copy;
}

/// The memory of a grouped product.
struct GroupedMemory {
  Handle d, a_copy, b_copy, transposed;  // the last one is the result, if the kernel computes its transpose in `d`
};

/// Allocates what the plan of a grouped product asks for, and copies operands. Returns false where there is no memory.
bool allocate(const GroupedCall& call, const GroupedPlan& plan, GroupedMemory* memory) {
  const int64_t whole[] = {plan.groups, plan.rows, plan.pitch};
  const int first = plan.groups == 0;
  memory->d = try_empty_contiguous(3 - first, whole + first, call.a.dtype, call.a.device);
  if (!memory->d) return false;
  if (plan.job.is_transposed) {
    memory->transposed = try_padded_matrix(plan.columns, plan.rows, call.a.dtype, call.a.device);
    if (!memory->transposed) return false;
  }
  if (plan.copies_a) {
    memory->a_copy = plan.job.is_transposed ? try_padded_copy(call.b, true) : try_padded_copy(call.a, plan.groups != 0);
    if (!memory->a_copy) return false;
  }
  if (plan.copies_b) memory->b_copy = try_padded_copy(call.b, false);
  return !plan.copies_b || memory->b_copy;
}

/// Whether a group of a bfloat16 product may start anywhere in a row: torch's kernel asserts on the device that it
/// starts on 16 bytes, which ends the CUDA context. The Autograd kernel of the op rearranges such operands, but does
/// not run in torch.inference_mode.
bool may_start_anywhere(const GroupedCall& call) {
  const TensorView &a = call.a.view, &b = call.b.view;
  if (gemm_dtype(call.a.dtype) != DType::kBF16 || !call.offs) return false;
  const bool by_rows = a.ndim == 2 && b.ndim == 3, by_k = a.ndim == 2 && b.ndim == 2;
  const bool by_columns = a.ndim == 3 && b.ndim == 2;
  return by_columns || (by_rows && a.strides[1] != 1) || (by_k && (a.strides[1] == 1 || b.strides[1] != 1));
}

/// Computes a grouped product. `finishes`, if it is not null, receives whether the call's bias, activation and gate
/// have been applied.
Handle run_grouped(GroupedCall& call, bool* finishes = nullptr) {
  const auto refuse = [](const std::string& message) { fail("hgemm::grouped_mm: " + message); };
  if (!(call.a.device == call.b.device)) {
    refuse("a (" + text_of_device(call.a.device) + ") and b (" + text_of_device(call.b.device) +
           "): devices must match");
  }
  if (call.variant < kTorch || call.variant >= grouped_kernel_count()) {
    refuse("variant must be -2 (torch), -1 (auto) or the index of a grouped kernel below " +
           std::to_string(grouped_kernel_count()) + ", got " + std::to_string(call.variant));
  }
  // Only the override knows whether torch's flags allow TF32.
  if (gemm_dtype(call.a.dtype) == DType::kF32 && call.variant == kAuto && context_holds()) {
    const OnDevice on_device(call.a.device);
    return call_torchs_grouped_mm(call, false);
  }
  const bool has_dtypes = gemm_dtype(call.a.dtype) && gemm_dtype(call.b.dtype) && gemm_dtype(call.result_dtype());
  GroupedPlan plan;
  plan_grouped({.a = call.a.view,
                .b = call.b.view,
                .has_known_dtypes = has_dtypes,
                .out_dtype = gemm_dtype(call.result_dtype()).value_or(DType::kF32),
                .offs = call.offs ? &call.offs.view : nullptr,
                .offs_is_int32 = call.offs && call.offs.dtype == aoti_torch_dtype_int32(),
                .offs_is_elsewhere = call.offs && !(call.offs.device == call.a.device),
                .bias = call.bias ? call.bias.view.data : nullptr,
                .act = static_cast<Activation>(call.act),
                .gated = call.gated,
                .ordinal = call.a.device.index,
                .stream = current_stream(call.a.device),
                .variant = static_cast<int>(call.variant),
                .allows_tf32 = true},
               &plan);
  if (plan.outcome == Outcome::kInvalid || plan.outcome == Outcome::kRefused) fail(plan.message);
  if (plan.is_bmm && call.variant == kAuto) {
    Call bmm;
    bmm.op = Op::kBmm;
    bmm.a = std::move(call.a);
    bmm.b = std::move(call.b);
    return run(bmm);
  }
  const OnDevice on_device(call.a.device);
  if (plan.outcome != Outcome::kOurs) {
    if (may_start_anywhere(call)) {
      refuse("the dimension that is divided into groups must not be the contiguous one of a " +
             shape_text(call.a.view.ndim, call.a.view.sizes) + ", b " +
             shape_text(call.b.view.ndim, call.b.view.sizes) +
             " or the result. hgemm_ops.grouped_mm makes the copies that this needs");
    }
    return call_torchs_grouped_mm(call, true);
  }
  GroupedMemory memory;
  while (!allocate(call, plan, &memory)) {
    const bool may_be_torchs = !may_start_anywhere(call) && memory.d;  // torch needs memory for the result, too
    memory = {};
    const Outcome outcome = plan_grouped_with_less(&plan);
    if (outcome == Outcome::kOurs) continue;
    if (outcome == Outcome::kTorch && may_be_torchs) return call_torchs_grouped_mm(call, true);
    const int64_t wanted =
        dtype_bytes(plan.job.grouped.product.dtype) * std::max<int64_t>(plan.groups, 1) * plan.rows * plan.pitch;
    raise_out_of_memory(1, &wanted, aoti_torch_dtype_uint8(), call.a.device);
    fail(std::string("CUDA out of memory. hgemm: no memory for the result or the copies of operands of ") +
         grouped_kernel(plan.job.kernel).name);
  }
  if (finishes != nullptr) *finishes = plan.finishes;
  // The first dimension is left out where the result has two.
  const int64_t sizes[] = {plan.groups, plan.rows, plan.columns}, strides[] = {plan.rows * plan.pitch, plan.pitch, 1};
  const int first = plan.groups == 0;
  const Handle& d = memory.d;
  if (const Status status =
          launch(plan.job, data_of(d), data_of(memory.a_copy), data_of(memory.b_copy), current_stream(call.a.device))) {
    fail(launch_error(plan.job, status));
  }
  if (plan.job.is_transposed) {
    copy_matrix(memory.transposed, d.get(), plan.columns, plan.rows, 1, plan.pitch);
    return std::move(memory.transposed);
  }
  if (plan.pitch == plan.columns) return std::move(memory.d);
  return reinterpret(d.get(), 3 - first, sizes + first, strides + first);
}

void grouped_mm(StableIValue* stack, uint64_t, uint64_t) {
  Arguments arguments(stack);
  GroupedCall call;
  call.a = arguments.tensor();
  call.b = arguments.tensor();
  call.offs = arguments.optional_tensor();
  call.out_dtype = arguments.take<std::optional<int32_t>>();
  call.variant = arguments.take<std::optional<int64_t>>().value_or(kAuto);
  stack[0] = give(run_grouped(call));
}

/// Applies bias and activation, or the gate, to the result of a grouped product, in a pass of its own.
Handle finish_grouped(const GroupedCall& call, DType dtype, Handle result) {
  const OnDevice on_device(call.a.device);
  Tensor y = inspect(std::move(result));
  const int64_t rows = y.view.sizes[0], n = y.view.sizes[1], sizes[] = {rows, n / 2};
  void* const data = mutable_data(y.handle.get());
  const auto act = static_cast<Activation>(call.act);
  const Stream stream = current_stream(call.a.device);
  Status status = 0;
  if (call.gated) {
    Handle gated = empty_contiguous(2, sizes, y.dtype, call.a.device);
    status = launch_gate(data, data_of(gated), rows, n / 2, dtype, act, stream);
    y.handle = std::move(gated);
  } else if (call.bias || act != Activation::kNone) {
    status = launch_finish_groups(data, rows, n, y.view.strides[0], static_cast<const int32_t*>(call.offs.view.data),
                                  call.b.view.sizes[0], call.bias ? call.bias.view.data : nullptr, dtype, act, stream);
  }
  if (status != 0) fail(std::string("hgemm::grouped_linear: the epilogue failed to launch: ") + status_string(status));
  return std::move(y.handle);
}

/// hgemm::grouped_linear. Where the kernel of the product does not apply bias, activation or gate, another one follows.
void grouped_linear(StableIValue* stack, uint64_t, uint64_t) {
  Arguments arguments(stack);
  GroupedCall call;
  call.a = arguments.tensor();
  call.b = arguments.tensor();
  call.offs = arguments.tensor();
  call.bias = arguments.optional_tensor();
  call.act = arguments.take<int64_t>();
  call.gated = arguments.take<bool>();
  call.variant = arguments.take<std::optional<int64_t>>().value_or(kAuto);
  const TensorView &x = call.a.view, &w = call.b.view;
  const auto require = [](bool condition, const std::string& message) {
    if (!condition) fail("hgemm::grouped_linear: " + message);
  };
  require(x.ndim == 2 && w.ndim == 3,
          "x " + shape_text(x.ndim, x.sizes) + " must be 2-D and w " + shape_text(w.ndim, w.sizes) + " 3-D");
  require(call.act >= 0 && call.act <= static_cast<int64_t>(Activation::kSilu),
          "act must be one of 0 (none), 1 (relu), 2 (gelu), 3 (gelu_tanh), 4 (silu), got " + std::to_string(call.act));
  require(!call.gated || (!call.bias && w.sizes[2] % 16 == 0),
          "a gate takes no bias, and w " + shape_text(w.ndim, w.sizes) + " must have a multiple of 16 columns");
  const auto dtype = activation_dtype(call.a.dtype);
  require(dtype.has_value(), "the dtype of x must be float16, bfloat16 or float32");
  if (call.bias) {
    const TensorView& bias = call.bias.view;
    bool contiguous = false;
    check(aoti_torch_is_contiguous(call.bias.handle.get(), &contiguous), "is_contiguous");
    require(bias.ndim == 2 && bias.sizes[0] == w.sizes[0] && bias.sizes[1] == w.sizes[2] && contiguous &&
                call.bias.dtype == call.a.dtype && call.bias.device == call.a.device,
            "bias " + shape_text(bias.ndim, bias.sizes) +
                " must be contiguous, (groups, n), with the dtype and device of x");
  }
  bool finishes = false;
  Handle result = run_grouped(call, &finishes);
  if (!finishes) result = finish_grouped(call, *dtype, std::move(result));
  stack[0] = give(std::move(result));
}

/// An implementation of an op, in the calling convention of the stable ABI.
using Boxed = void (*)(StableIValue* stack, uint64_t inputs, uint64_t outputs);

void implement(TorchLibraryHandle library, const std::string& name, Boxed implementation) {
  check(torch_library_impl(library, name.c_str(), implementation, TORCH_ABI_VERSION), "torch_library_impl");
}

template <Op kOp>
void implement(TorchLibraryHandle library) {
  implement(library, op_name(kOp), functional<kOp>);
  implement(library, std::string(op_name(kOp)) + ".out", out_variant<kOp>);
}

void register_ops(const char* name_space) {
  TorchLibraryHandle library = nullptr;  // never deleted: its registrations would end with it
  check(aoti_torch_library_init_impl(name_space, "CUDA", __FILE__, __LINE__, &library), "library_init_impl");
  implement<Op::kMatmul>(library);
  implement<Op::kMm>(library);
  implement<Op::kBmm>(library);
  implement<Op::kAddmm>(library);
  implement<Op::kBaddbmm>(library);
  implement<Op::kLinear>(library);
  implement(library, "linear_save", linear_save);
  implement(library, "linear_gated", linear_gated);
  implement(library, "gate", gate);
  implement(library, "grouped_mm", grouped_mm);
  implement(library, "grouped_linear", grouped_linear);
}

}  // namespace
}  // namespace hgemm

const char* hgemm_register_ops(const char* name_space) {
  static auto& registered = *new std::set<std::string>;
  static std::string error;
  try {
    if (!registered.count(name_space)) hgemm::register_ops(name_space);
    registered.insert(name_space);
    return nullptr;
  } catch (const std::exception& e) {
    error = e.what();
    return error.c_str();
  }
}
