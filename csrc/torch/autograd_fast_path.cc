// The ops at the AutogradCUDA key: a call that wants no gradient goes on below autograd without entering Python, every
// other one to the Python kernel (hgemm_ops/ops/autograd.py), which is an op of its own for that purpose.
//
// The stable ABI knows neither requires_grad nor how to continue below a key, so this file asks libc10 and libtorch_cpu
// directly (torch_symbols.h). Where one of these symbols is missing, nothing is registered here and nothing changes but
// the cost, since the Python kernels then see every call, 2 to 4 us slower. Until Python calls hgemm_autograd_start(),
// every call goes to Python from here.
//
// NOTE: profilers list such a call twice, one inside the other: the stable ABI has no redispatch that they do not see.
#include <torch/csrc/stable/library.h>

#include <array>
#include <tuple>
#include <utility>

#include "dispatch/c_api.h"
#include "torch/tensor_access.h"
#include "torch/torch_symbols.h"

// The base of the exceptions by which a C++ function tells pybind11, and so torch's bindings, what to raise in Python.
// Declared as pybind11 declares it, and like every exception recognized by its name.
namespace pybind11 {
class __attribute__((visibility("default"))) builtin_exception : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
  virtual void set_error() const = 0;
};
}  // namespace pybind11

namespace hgemm {
namespace {

namespace stable = torch::stable::detail;

bool has_symbols() {
  return c10_requires_grad && c10_tangent && c10_exclude && c10_end_exclude && c10_includes && at_is_subclass &&
         Py_IsInitialized && PyGILState_Ensure && PyGILState_Release && Py_IncRef && Py_DecRef && PyObject_Type &&
         PyErr_SetObject && PyErr_Clear;
}

// Sets of dispatch keys as torch represents them, from Python: autograd and all above it; that of dispatch modes.
uint64_t autograd_and_above = 0, dispatch_modes = 0;

/// Excludes keys from dispatch on this thread.
class Exclude {
 public:
  explicit Exclude(uint64_t keys) { c10_exclude(guard_, keys); }
  ~Exclude() { c10_end_exclude(guard_); }
  Exclude(const Exclude&) = delete;
  Exclude& operator=(const Exclude&) = delete;

 private:
  alignas(16) unsigned char guard_[64];  // torch's guard has 16 bytes
};

/// Whether the Python kernel is to see a call with this argument: a gradient is wanted, which is asked as torch's
/// generated kernels ask (so it holds under functorch), or the next to see it is Python anyway.
bool is_for_python(const Handle& handle) {
  // A handle points to an at::Tensor, which is a pointer to its TensorImpl.
  const void* impl = *reinterpret_cast<const void* const*>(handle.get());
  if (at_is_subclass(handle.get()) || (c10_requires_grad(impl) && aoti_torch_grad_mode_is_enabled())) return true;
  const void* tangent = c10_tangent(impl, 0, handle.get());
  bool defined = false;
  check(aoti_torch_is_defined(static_cast<AtenTensorHandle>(const_cast<void*>(tangent)), &defined), "is_defined");
  return defined;
}
bool is_for_python(const std::optional<Handle>& handle) {
  return handle && is_for_python(*handle);
}
template <class T>
bool is_for_python(const T&) {
  return false;
}

// The arguments of an op, owned. A call of the dispatcher consumes what it is given: a copy, or the last reference.

template <class T>
struct Take {
  static T from(StableIValue value) { return stable::to<T>(value); }
};
template <>
struct Take<Handle> {
  static Handle from(StableIValue value) { return Handle(stable::to<AtenTensorHandle>(value)); }
};
template <>
struct Take<std::optional<Handle>> {
  static std::optional<Handle> from(StableIValue value) {
    const auto handle = stable::to<std::optional<AtenTensorHandle>>(value);
    return handle ? std::make_optional(Handle(*handle)) : std::nullopt;
  }
};

StableIValue give(const Handle& handle) {
  return stable::from(another(handle.get()));
}
StableIValue give(Handle&& handle) {
  return stable::from(handle.release());
}
StableIValue give(const std::optional<Handle>& handle) {
  return stable::from(handle ? std::make_optional(another(handle->get())) : std::nullopt);
}
StableIValue give(std::optional<Handle>&& handle) {
  return stable::from(handle ? std::make_optional(handle->release()) : std::nullopt);
}
template <class T>
StableIValue give(const T& value) {
  return stable::from(value);
}

using Dtype = std::optional<int32_t>;
using VariantId = std::optional<int64_t>;
using StaticWeights = std::optional<bool>;
using Product = std::tuple<Handle, Handle, Dtype, VariantId, StaticWeights>;
using AddProduct = std::tuple<Handle, Handle, Handle, double, double, Dtype, VariantId, StaticWeights>;
using Linear = std::tuple<Handle, Handle, std::optional<Handle>, int64_t, Dtype, VariantId, StaticWeights>;

template <class... T, size_t... kIndex>
std::tuple<T...> take(const StableIValue* stack, std::tuple<T...>*, std::index_sequence<kIndex...>) {
  return {Take<T>::from(stack[kIndex])...};
}

template <class Arguments>
AOTITorchError call(const char* op, Arguments&& arguments, StableIValue* result) {
  auto stack = std::apply([](auto&&... value) { return std::array{give(std::forward<decltype(value)>(value))...}; },
                          std::forward<Arguments>(arguments));
  const AOTITorchError status = torch_call_dispatcher(op, "", stack.data(), TORCH_ABI_VERSION);
  *result = stack[0];
  return status;
}

// An exception on its way through torch's C shim, which keeps its text at best: the Python kernel leaves it here, and
// on this side of the shim it is raised again, the same object.

using PythonObject = std::shared_ptr<_object>;

struct Kept {
  PythonObject exception;
  std::string text;
};
thread_local Kept kept;

class Gil {
 public:
  Gil() : state_(PyGILState_Ensure()) {}
  ~Gil() { PyGILState_Release(state_); }
  Gil(const Gil&) = delete;
  Gil& operator=(const Gil&) = delete;

 private:
  int state_;
};

void drop(_object* object) {
  if (!Py_IsInitialized()) return;  // a thread, and with it `kept`, may outlive the interpreter
  const Gil gil;
  Py_DecRef(object);
}

class PythonException : public pybind11::builtin_exception {
 public:
  explicit PythonException(Kept exception)
      : builtin_exception(exception.text), exception_(std::move(exception.exception)) {}
  void set_error() const override {
    _object* type = PyObject_Type(exception_.get());
    PyErr_SetObject(type, exception_.get());
    Py_DecRef(type);
  }

 private:
  PythonObject exception_;
};

/// The kernel. `op` is called again with autograd excluded, so that all that comes between autograd and the CUDA kernel
/// still sees it: functorch's levels, functionalization, negative views. Modes and subclasses are Python; with them,
/// the Python kernel costs nothing that counts, and exceptions pass through it unharmed.
template <class Arguments>
void run(const char* op, const char* python_op, StableIValue* stack) {
  auto arguments =
      take(stack, static_cast<Arguments*>(nullptr), std::make_index_sequence<std::tuple_size_v<Arguments>>());
  if (autograd_and_above != 0 && !c10_includes(dispatch_modes) &&
      !std::apply([](const auto&... value) { return (is_for_python(value) || ...); }, arguments)) {
    {
      const Exclude below_autograd(autograd_and_above);
      if (call(op, std::as_const(arguments), stack) == AOTI_TORCH_SUCCESS) return;
    }
    // What failed fails again below, with the right exception. Python's own may be left pending.
    const Gil gil;
    PyErr_Clear();
  }
  kept = {};  // what a Python kernel left that Python had called itself
  const AOTITorchError status = call(python_op, std::move(arguments), stack);
  if (status != AOTI_TORCH_SUCCESS && kept.exception) throw PythonException(std::exchange(kept, {}));
  check(status, python_op);
}

#define HGEMM_AUTOGRAD(name, Arguments)                                \
  library.impl(#name, [](StableIValue* stack, uint64_t, uint64_t) {    \
    run<Arguments>("hgemm::" #name, "hgemm::_autograd_" #name, stack); \
  })

}  // namespace
}  // namespace hgemm

STABLE_TORCH_LIBRARY_IMPL(hgemm, AutogradCUDA, library) {
  using namespace hgemm;
  if (!has_symbols()) return;
  HGEMM_AUTOGRAD(matmul, Product);
  HGEMM_AUTOGRAD(mm, Product);
  HGEMM_AUTOGRAD(bmm, Product);
  HGEMM_AUTOGRAD(addmm, AddProduct);
  HGEMM_AUTOGRAD(baddbmm, AddProduct);
  HGEMM_AUTOGRAD(linear, Linear);
}

int hgemm_autograd_start(uint64_t autograd_and_above, uint64_t dispatch_modes) {
  if (!hgemm::has_symbols()) return 1;
  hgemm::dispatch_modes = dispatch_modes;
  hgemm::autograd_and_above = autograd_and_above;
  return 0;
}

void hgemm_autograd_keep(_object* exception, const char* text) {
  Py_IncRef(exception);
  hgemm::kept = {hgemm::PythonObject(exception, hgemm::drop), text};
}
