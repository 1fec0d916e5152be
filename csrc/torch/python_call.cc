// The ops as functions of Python that go to the CUDA implementation at once. Torch's own way there parses the arguments
// by the schema, boxes them, looks the kernel up, and unboxes.
//
// Only for plain calls, of which the dispatcher would make nothing else: every tensor a torch.Tensor or nn.Parameter
// and no subclass, on the GPU, no gradient wanted, and nobody there who is to see the op: neither a mode of Python's,
// nor functorch, autocast, a tracer or a profiler. All others, and those that fail, have torch's own way.
//
// NOTE: where in a Python object its tensor lies is no part of any ABI. hgemm_ops/_python_call.py searches for it, and
// hgemm_python_start() is not called where it is not found.
#include <memory>

#include "torch/call.h"
#include "torch/dispatch_keys.h"

namespace hgemm {
namespace {

constexpr int kFastCall = 0x80;  // METH_FASTCALL: (self, arguments, count)

HgemmPythonLayout python{};

bool has_symbols() {
  return at_has_callbacks && at_has_function_mode && PyCFunction_NewEx && PyCapsule_New && PyCapsule_GetPointer &&
         PyTuple_New && PyTuple_SetItem && PyObject_CallObject && PyEval_SaveThread && PyEval_RestoreThread;
}

/// What a function calls.
struct Target {
  Op op;
  int variant;
  bool static_weights;
  _object* fallback;  // owned
};

Target* target_of(_object* capsule) {
  return static_cast<Target*>(PyCapsule_GetPointer(capsule, nullptr));
}
void destroy(_object* capsule) {
  const std::unique_ptr<Target> target(target_of(capsule));
  Py_DecRef(target->fallback);
}

/// Reads the arguments of plain calls. The tensors stay Python's, which holds the arguments until the call returns.
class Reader {
 public:
  /// False where `object` is not plain.
  bool read(_object* object, Tensor* to) const {
    const auto words = reinterpret_cast<void* const*>(object);
    const void* type = words[python.type_word];
    if (type != python.tensor && type != python.parameter) return false;
    // A tensor's address is what torch's handles point to.
    const auto handle = reinterpret_cast<AtenTensorHandle>(const_cast<void**>(words + python.tensor_word));
    if (keys_.of(handle) != key_sets.plain || goes_to_python(handle)) return false;
    LentCall::lend(handle, to);
    return true;
  }
  bool read(_object* const* arguments, int64_t count, Call* call) const {
    switch (call->op) {
      case Op::kMatmul:
      case Op::kMm:
      case Op::kBmm: return count == 2 && read(arguments[0], &call->a) && read(arguments[1], &call->b);
      case Op::kAddmm:
      case Op::kBaddbmm:
        return count == 3 && read(arguments[0], &call->c) && read(arguments[1], &call->a) &&
               read(arguments[2], &call->b);
      case Op::kLinear:
        return (count == 2 || count == 3) && read(arguments[0], &call->a) && read(arguments[1], &call->b) &&
               (count == 2 || arguments[2] == python.none || read(arguments[2], &call->c));
      default: return false;
    }
  }

 private:
  NextKeys keys_{key_sets.from_python};
};

/// Lets other threads of Python run.
class WithoutGil {
 public:
  WithoutGil() : thread_(PyEval_SaveThread()) {}
  ~WithoutGil() { PyEval_RestoreThread(thread_); }
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

 private:
  struct _ts* thread_;
};

/// The result of a plain call, or null.
_object* run_plain(const Target& target, _object* const* arguments, int64_t count) {
  if (key_sets.below_autograd == 0 || at_has_callbacks() || at_has_function_mode()) return nullptr;
  LentCall call(target.op);
  call.variant = target.variant;
  call.static_weights = target.static_weights;
  try {
    if (!Reader().read(arguments, count, &call)) return nullptr;
    Handle result;
    {
      const WithoutGil without_gil;
      const Exclude below_autograd(key_sets.autograd_and_above);
      result = run(call);
    }
    _object* wrapped = python.wrap(result.get());
    if (wrapped == nullptr) PyErr_Clear();
    return wrapped;
  } catch (const std::exception&) {
    PyErr_Clear();  // what failed fails again below, with the right exception
    return nullptr;
  }
}

_object* call_target(_object* self, _object* const* arguments, int64_t count) {
  const Target& target = *target_of(self);
  if (_object* result = run_plain(target, arguments, count)) return result;
  _object* tuple = PyTuple_New(count);
  if (tuple == nullptr) return nullptr;
  for (int64_t i = 0; i < count; ++i) {
    Py_IncRef(arguments[i]);
    PyTuple_SetItem(tuple, i, arguments[i]);
  }
  _object* result = PyObject_CallObject(target.fallback, tuple);
  Py_DecRef(tuple);
  return result;
}

HgemmPyMethodDef the_method{"hgemm", reinterpret_cast<void*>(call_target), kFastCall, nullptr};

}  // namespace
}  // namespace hgemm

int hgemm_python_start(const HgemmPythonLayout* layout) {
  if (!hgemm::has_symbols()) return 1;
  hgemm::python = *layout;
  return 0;
}

_object* hgemm_python_function(int op, int variant, int static_weights, _object* fallback) {
  using namespace hgemm;
  auto target = std::make_unique<Target>(Target{static_cast<Op>(op), variant, static_weights != 0, fallback});
  _object* self = PyCapsule_New(target.get(), nullptr, destroy);
  if (self == nullptr) return nullptr;
  Py_IncRef(fallback);
  target.release();
  _object* function = PyCFunction_NewEx(&the_method, self, nullptr);
  Py_DecRef(self);
  return function;
}
