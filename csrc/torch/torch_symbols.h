// What the ops ask of torch beyond its stable ABI, and of Python, by mangled name.
//
// THE SYMBOLS OF TORCH'S LIBRARIES BELOW ARE OUTSIDE THE STABLE ABI. All of them are weak, and whoever calls one has
// another way for a torch without it, which costs more and gives the same.
#pragma once

#include <cstdint>
#include <optional>

struct _object;  // a PyObject

#define HGEMM_WEAK(name) __asm__(name) __attribute__((weak))

namespace hgemm {

/// at::Tensor as torch returns it: one pointer to a TensorImpl, written where the caller says, which the destructor
/// that is not trivial stands for. NOTE: owns nothing here. To be made only where a handle is to be, by operator new:
/// that is what torch's handles point to, and what it deletes.
struct TorchTensor {
  const void* impl;
  TorchTensor(const TorchTensor&) = delete;
  TorchTensor& operator=(const TorchTensor&) = delete;
  ~TorchTensor() {}
};

/// c10::IntArrayRef and c10::Device.
struct TorchInts {
  const int64_t* data;
  uint64_t size;
};
struct TorchDevice {
  int8_t type, index;
};

/// c10::impl::PODLocalDispatchKeySet: each the difference to its default.
struct ThreadKeys {
  uint64_t included, excluded;
};

}  // namespace hgemm

// at::Tensor at::_ops::mm::call(const at::Tensor& self, const at::Tensor& mat2), and bmm's
hgemm::TorchTensor at_mm(const void* a, const void* b) HGEMM_WEAK("_ZN2at4_ops2mm4callERKNS_6TensorES4_");
hgemm::TorchTensor at_bmm(const void* a, const void* b) HGEMM_WEAK("_ZN2at4_ops3bmm4callERKNS_6TensorES4_");

// at::TensorBase at::detail::empty_cuda(c10::IntArrayRef sizes, c10::ScalarType, std::optional<c10::Device>,
//                                       std::optional<c10::MemoryFormat>)
hgemm::TorchTensor at_empty_cuda(hgemm::TorchInts sizes, int8_t dtype, std::optional<hgemm::TorchDevice> device,
                                 std::optional<int8_t> memory_format)
    HGEMM_WEAK(
        "_ZN2at6detail10empty_cudaEN3c108ArrayRefIlEENS1_10ScalarTypeESt8optionalINS1_6DeviceEES5_INS1_12"
        "MemoryFormatEE");

extern "C" {
// c10::DeviceIndex c10::cuda::current_device()
int8_t c10_cuda_current_device() HGEMM_WEAK("_ZN3c104cuda14current_deviceEv");
// bool c10::TensorImpl::requires_grad() const
bool c10_requires_grad(const void* impl) HGEMM_WEAK("_ZNK3c1010TensorImpl13requires_gradEv");
// const at::Tensor& c10::TensorImpl::_fw_grad(uint64_t level, const at::TensorBase& self) const
const void* c10_tangent(const void* impl, uint64_t level, const void* self)
    HGEMM_WEAK("_ZNK3c1010TensorImpl8_fw_gradEmRKN2at10TensorBaseE");
// c10::impl::ExcludeDispatchKeyGuard(c10::DispatchKeySet), and its destructor
void c10_exclude(void* guard, uint64_t keys) HGEMM_WEAK("_ZN3c104impl23ExcludeDispatchKeyGuardC1ENS_14DispatchKeySetE");
void c10_end_exclude(void* guard) HGEMM_WEAK("_ZN3c104impl23ExcludeDispatchKeyGuardD1Ev");
// bool c10::impl::tls_is_dispatch_keyset_included(c10::DispatchKeySet)
bool c10_includes(uint64_t keys) HGEMM_WEAK("_ZN3c104impl31tls_is_dispatch_keyset_includedENS_14DispatchKeySetE");
// thread_local c10::impl::PODLocalDispatchKeySet c10::impl::raw_local_dispatch_key_set
// NOTE: has no address to compare with null where it is missing: see has_thread_keys() in autograd_fast_path.cc.
extern __thread hgemm::ThreadKeys c10_thread_keys HGEMM_WEAK("_ZN3c104impl26raw_local_dispatch_key_setE");
// bool at::impl::tensor_has_dispatch(const at::Tensor&): whether it is of a subclass with __torch_dispatch__
bool at_is_subclass(const void* tensor) HGEMM_WEAK("_ZN2at4impl19tensor_has_dispatchERKNS_6TensorE");
// bool at::hasCallbacks(): whether a profiler, or the like, is to hear of every op on this thread
bool at_has_callbacks() HGEMM_WEAK("_ZN2at12hasCallbacksEv");
// bool at::impl::torch_function_mode_enabled()
bool at_has_function_mode() HGEMM_WEAK("_ZN2at4impl27torch_function_mode_enabledEv");

// at::Context& at::globalContext(), and what its users have set
void* at_global_context() HGEMM_WEAK("_ZN2at13globalContextEv");
bool at_deterministic(const void* context) HGEMM_WEAK("_ZNK2at7Context23deterministicAlgorithmsEv");
bool at_fp16_accumulation(const void* context) HGEMM_WEAK("_ZNK2at7Context27allowFP16AccumulationCuBLASEv");
// at::BlasBackend at::Context::blasPreferredBackend(), an int8_t
int8_t at_blas_backend(void* context) HGEMM_WEAK("_ZN2at7Context20blasPreferredBackendEv");
// at::CuBLASReductionOption at::Context::allowFP16ReductionCuBLAS() const, a uint8_t; bfloat16's; and the setter
uint8_t at_fp16_reduction(const void* context) HGEMM_WEAK("_ZNK2at7Context24allowFP16ReductionCuBLASEv");
uint8_t at_bf16_reduction(const void* context) HGEMM_WEAK("_ZNK2at7Context24allowBF16ReductionCuBLASEv");
void at_set_fp16_reduction(void* context, bool reduced_precision, bool split_k)
    HGEMM_WEAK("_ZN2at7Context27setAllowFP16ReductionCuBLASEbb");
// at::cuda::tunable::TuningContext* at::cuda::tunable::getTuningContext(), and IsTunableOpEnabled() of it
void* at_tuning_context() HGEMM_WEAK("_ZN2at4cuda7tunable16getTuningContextEv");
bool at_is_tunable_op_enabled(const void* tuning)
    HGEMM_WEAK("_ZNK2at4cuda7tunable13TuningContext18IsTunableOpEnabledEv");

// Python's own stable ABI.
struct HgemmPyMethodDef {  // PyMethodDef
  const char* name;
  void* function;
  int flags;
  const char* doc;
};
__attribute__((weak)) _object* PyCFunction_NewEx(HgemmPyMethodDef* def, _object* self, _object* module);
__attribute__((weak)) _object* PyCapsule_New(void* pointer, const char* name, void (*destructor)(_object*));
__attribute__((weak)) void* PyCapsule_GetPointer(_object* capsule, const char* name);
__attribute__((weak)) _object* PyTuple_New(int64_t size);
__attribute__((weak)) int PyTuple_SetItem(_object* tuple, int64_t at, _object* item);
__attribute__((weak)) _object* PyObject_CallObject(_object* callable, _object* arguments);
__attribute__((weak)) struct _ts* PyEval_SaveThread();
__attribute__((weak)) void PyEval_RestoreThread(struct _ts* thread);
__attribute__((weak)) int Py_IsInitialized();
__attribute__((weak)) int PyGILState_Ensure();
__attribute__((weak)) void PyGILState_Release(int state);
__attribute__((weak)) void Py_IncRef(_object* object);
__attribute__((weak)) void Py_DecRef(_object* object);
__attribute__((weak)) _object* PyObject_Type(_object* object);
__attribute__((weak)) void PyErr_SetObject(_object* type, _object* value);
__attribute__((weak)) void PyErr_Clear();
}
