// The calls around each context, as built-in functions of Python. A call of one takes a tenth of the time of a call
// through ctypes.
#include <cstring>

#include "dispatch/c_api.h"

// Functions of Python's stable ABI. They are declared here because this library is for every version of Python, and
// weak because a process may load it without Python. Objects are opaque.
extern "C" {
using PyObject = void;
using PyCapsule_Destructor = void (*)(PyObject*);
__attribute__((weak)) PyObject* PyBool_FromLong(long value);
__attribute__((weak)) unsigned long long PyLong_AsUnsignedLongLongMask(PyObject* number);
__attribute__((weak)) PyObject* PyErr_Occurred(void);
__attribute__((weak)) PyObject* PyCapsule_New(void* pointer, const char* name, PyCapsule_Destructor destructor);
__attribute__((weak)) void* PyCapsule_GetPointer(PyObject* capsule, const char* name);
}

namespace {

constexpr const char* kName = "hgemm_context";

HgemmContext* context_of(PyObject* capsule) {
  return static_cast<HgemmContext*>(PyCapsule_GetPointer(capsule, kName));
}

}  // namespace

void* hgemm_builtin_context_new(void*, void* settings) {
  const unsigned long long bytes = PyLong_AsUnsignedLongLongMask(settings);
  if (bytes == ~0ull && PyErr_Occurred() != nullptr) return nullptr;
  HgemmSettings asked;
  static_assert(sizeof(asked) == sizeof(bytes));
  std::memcpy(&asked, &bytes, sizeof(asked));
  HgemmContext* const context = hgemm_context_new(asked);
  PyObject* const capsule =
      PyCapsule_New(context, kName, [](PyObject* collected) { hgemm_context_delete(context_of(collected)); });
  if (capsule == nullptr) hgemm_context_delete(context);
  return capsule;
}

void* hgemm_builtin_context_enter(void*, void* capsule) {
  HgemmContext* const context = context_of(capsule);
  if (context == nullptr) return nullptr;
  hgemm_context_enter(context);
  return PyBool_FromLong(1);
}

void* hgemm_builtin_context_exit(void*, void* capsule) {
  HgemmContext* const context = context_of(capsule);
  if (context == nullptr) return nullptr;
  return PyBool_FromLong(hgemm_context_exit(context));
}
