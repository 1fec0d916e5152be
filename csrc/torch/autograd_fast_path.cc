// The ops at the AutogradCUDA key: a call that wants no gradient goes on below autograd without entering Python, every
// other one to the Python kernel (hgemm_ops/ops/autograd.py), which is an op of its own for that purpose. "On" is the
// CUDA implementation itself where the dispatcher would come to it next, else the dispatcher.
//
// The stable ABI knows neither requires_grad nor how to continue below a key, so this file asks libc10 and libtorch_cpu
// directly (torch_symbols.h). Where one of these symbols is missing, nothing is registered here and nothing changes but
// the cost, since the Python kernels then see every call, 2 to 4 us slower. Until Python calls hgemm_autograd_start(),
// every call goes to Python from here.
//
// NOTE: profilers list a call that takes the dispatcher twice, one inside the other: the stable ABI has no redispatch
// that they do not see.
#include <dlfcn.h>
#include <torch/csrc/stable/library.h>

#include <array>
#include <tuple>
#include <utility>

#include "torch/call.h"
#include "torch/dispatch_keys.h"

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

HgemmKeySets key_sets{};

namespace {

namespace stable = torch::stable::detail;

bool has_symbols() {
  return c10_requires_grad && c10_tangent && c10_exclude && c10_end_exclude && c10_includes && at_is_subclass &&
         Py_IsInitialized && PyGILState_Ensure && PyGILState_Release && Py_IncRef && Py_DecRef && PyObject_Type &&
         PyErr_SetObject && PyErr_Clear;
}

/// Whether c10_thread_keys exists; its address, an offset until the thread's memory is added, does not tell.
bool has_thread_keys() {
  static const bool found = dlsym(RTLD_DEFAULT, "_ZN3c104impl26raw_local_dispatch_key_setE") != nullptr;
  return found;
}

/// Whether nothing lies between autograd and the CUDA kernel. Any key that is not known to mean nothing may mean
/// something: functorch's levels, functionalization, modes, subclasses, negative views, other devices.
template <class... T>
bool is_next_to_kernel(const std::tuple<T...>& arguments) {
  if (key_sets.below_autograd == 0) return false;
  const NextKeys next(key_sets.below_autograd);
  const auto is_plain = [&](const auto& value) {
    using Value = std::decay_t<decltype(value)>;
    if constexpr (std::is_same_v<Value, Handle>) return next.of(value.get()) == key_sets.plain;
    if constexpr (std::is_same_v<Value, std::optional<Handle>>)
      return !value || next.of(value->get()) == key_sets.plain;
    return true;
  };
  return std::apply([&](const auto&... value) { return (is_plain(value) && ...); }, arguments);
}

bool is_for_python(const Handle& handle) {
  return goes_to_python(handle.get());
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

void lend(const Handle& a, const Handle& b, Dtype dtype, VariantId variant, StaticWeights static_weights,
          LentCall* call) {
  call->lend(a.get(), &call->a);
  call->lend(b.get(), &call->b);
  call->out_dtype = dtype;
  call->variant = variant.value_or(kAuto);
  call->static_weights = static_weights.value_or(false);
}
void lend(const Product& arguments, LentCall* call) {
  const auto& [a, b, dtype, variant, static_weights] = arguments;
  lend(a, b, dtype, variant, static_weights, call);
}
void lend(const AddProduct& arguments, LentCall* call) {
  const auto& [input, a, b, beta, alpha, dtype, variant, static_weights] = arguments;
  call->lend(input.get(), &call->c);
  lend(a, b, dtype, variant, static_weights, call);
  call->beta = beta;
  call->alpha = alpha;
}
void lend(const Linear& arguments, LentCall* call) {
  const auto& [x, weight, bias, act, dtype, variant, static_weights] = arguments;
  lend(x, weight, dtype, variant, static_weights, call);
  if (bias) call->lend(bias->get(), &call->c);
  call->act = act;
}

/// Has the CUDA implementation compute the result; false where it fails.
template <class Arguments>
bool run_here(Op op, const Arguments& arguments, StableIValue* result) {
  LentCall call(op);
  try {
    lend(arguments, &call);
    *result = give(run(call));
    return true;
  } catch (const std::exception&) {
    return false;
  }
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

/// The kernel. What comes between autograd and the CUDA kernel still sees a call, for which `name` is called again with
/// autograd excluded: functorch's levels, functionalization, negative views. Modes and subclasses are Python; with
/// them, the Python kernel costs nothing that counts, and exceptions pass through it unharmed.
template <class Arguments>
void kernel(Op op, const char* name, const char* python_op, StableIValue* stack) {
  auto arguments =
      take(stack, static_cast<Arguments*>(nullptr), std::make_index_sequence<std::tuple_size_v<Arguments>>());
  if (key_sets.autograd_and_above != 0 && !c10_includes(key_sets.dispatch_modes) &&
      !std::apply([](const auto&... value) { return (is_for_python(value) || ...); }, arguments)) {
    {
      const bool is_next = is_next_to_kernel(arguments);
      const Exclude below_autograd(key_sets.autograd_and_above);
      if (is_next ? run_here(op, arguments, stack)
                  : call(name, std::as_const(arguments), stack) == AOTI_TORCH_SUCCESS) {
        return;
      }
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

#define HGEMM_AUTOGRAD(name, kOp, Arguments)                                   \
  library.impl(#name, [](StableIValue* stack, uint64_t, uint64_t) {            \
    kernel<Arguments>(kOp, "hgemm::" #name, "hgemm::_autograd_" #name, stack); \
  })

}  // namespace
}  // namespace hgemm

STABLE_TORCH_LIBRARY_IMPL(hgemm, AutogradCUDA, library) {
  using namespace hgemm;
  if (!has_symbols()) return;
  HGEMM_AUTOGRAD(matmul, Op::kMatmul, Product);
  HGEMM_AUTOGRAD(mm, Op::kMm, Product);
  HGEMM_AUTOGRAD(bmm, Op::kBmm, Product);
  HGEMM_AUTOGRAD(addmm, Op::kAddmm, AddProduct);
  HGEMM_AUTOGRAD(baddbmm, Op::kBaddbmm, AddProduct);
  HGEMM_AUTOGRAD(linear, Op::kLinear, Linear);
}

int hgemm_thread_keys(uint64_t* keys) {
  if (!hgemm::has_thread_keys()) return 1;
  keys[0] = c10_thread_keys.included;
  keys[1] = c10_thread_keys.excluded;
  return 0;
}

int hgemm_find_word(const uint64_t* const* objects, int size, const uint64_t* words, int count) {
  for (int i = 0; i < size; ++i) {
    bool matches = count > 0;
    for (int j = 0; j < count; ++j) matches = matches && objects[j][i] == words[j];
    if (matches) return i;
  }
  return -1;
}

int hgemm_autograd_start(const HgemmKeySets* key_sets) {
  if (!hgemm::has_symbols() || (key_sets->below_autograd != 0 && !hgemm::has_thread_keys())) return 1;
  hgemm::key_sets = *key_sets;
  return 0;
}

void hgemm_autograd_keep(_object* exception, const char* text) {
  Py_IncRef(exception);
  hgemm::kept = {hgemm::PythonObject(exception, hgemm::drop), text};
}
