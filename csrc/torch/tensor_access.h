// Access to tensors through torch's C shim: owning handles, and the properties of a tensor that a call needs, which are
// fetched once.
#pragma once

#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/c/shim.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

#include "core/problem.h"
#include "dispatch/canonical.h"

// Not every torch has these symbols. They are weak, so that the library loads without them. The first is in the CUDA
// part of torch, the second came with 2.13.
extern "C" {
__attribute__((weak)) AOTITorchError aoti_torch_get_current_cuda_stream(int32_t device_index, void** stream);
__attribute__((weak)) const char* torch_exception_get_what_without_backtrace();
}

namespace hgemm {

[[noreturn]] inline void fail(const std::string& message) {
  throw std::runtime_error(message);
}

/// Turns the failure of a shim call into a RuntimeError, with torch's own message where this torch can return it. The
/// stable ABI drops the exception's type.
inline void check(AOTITorchError status, const char* call) {
  if (status == AOTI_TORCH_SUCCESS) return;
  const bool has_text = torch_exception_get_what_without_backtrace != nullptr;
  fail(std::string("hgemm: torch failed in ") + call +
       (has_text ? std::string(": ") + torch_exception_get_what_without_backtrace() : std::string()));
}

struct DeleteTensor {
  void operator()(AtenTensorOpaque* handle) const noexcept { aoti_torch_delete_tensor_object(handle); }
};
/// An owned reference to a tensor.
using Handle = std::unique_ptr<AtenTensorOpaque, DeleteTensor>;

struct Device {
  int32_t type, index;
  bool operator==(const Device& other) const { return type == other.type && index == other.index; }
};

/// A tensor of a call. `view.dtype` is a placeholder where gemm_dtype() does not know `dtype`.
struct Tensor {
  Handle handle;
  TensorView view;
  int32_t dtype = 0;
  Device device{};

  explicit operator bool() const { return handle != nullptr; }
};

/// The DType for torch's code of a dtype; none for dtypes that no kernel takes.
inline std::optional<DType> gemm_dtype(int32_t code) {
  if (code == aoti_torch_dtype_float16()) return DType::kF16;
  if (code == aoti_torch_dtype_bfloat16()) return DType::kBF16;
  if (code == aoti_torch_dtype_float32()) return DType::kF32;
  if (code == aoti_torch_dtype_float64()) return DType::kF64;
  if (code == aoti_torch_dtype_complex64()) return DType::kC64;
  return std::nullopt;
}

/// The same; none for dtypes that no kernel for activations and gates takes.
inline std::optional<DType> activation_dtype(int32_t code) {
  const std::optional<DType> dtype = gemm_dtype(code);
  return dtype && is_wide(*dtype) ? std::nullopt : dtype;
}

/// Fetches the properties of a tensor.
inline Tensor inspect(Handle owned) {
  Tensor t;
  AtenTensorHandle handle = owned.get();
  int64_t ndim = 0, *sizes = nullptr, *strides = nullptr;
  check(aoti_torch_get_dim(handle, &ndim), "get_dim");
  check(aoti_torch_get_sizes(handle, &sizes), "get_sizes");
  check(aoti_torch_get_strides(handle, &strides), "get_strides");
  check(aoti_torch_get_dtype(handle, &t.dtype), "get_dtype");
  check(aoti_torch_get_device_type(handle, &t.device.type), "get_device_type");
  check(aoti_torch_get_device_index(handle, &t.device.index), "get_device_index");
  check(torch_get_const_data_ptr(handle, &t.view.data), "get_const_data_ptr");
  t.view.ndim = static_cast<int32_t>(ndim);
  t.view.sizes = sizes;
  t.view.strides = strides;
  t.view.dtype = gemm_dtype(t.dtype).value_or(DType::kF32);
  t.handle = std::move(owned);
  return t;
}

/// A tensor's memory, for writing. A copy-on-write tensor gets memory of its own first.
inline void* mutable_data(AtenTensorHandle handle) {
  void* data = nullptr;
  check(torch_get_mutable_data_ptr(handle, &data), "get_mutable_data_ptr");
  return data;
}

/// A new contiguous tensor, whose memory is not initialised; null where torch cannot allocate it.
inline Handle try_empty_contiguous(int64_t ndim, const int64_t* sizes, int32_t dtype, Device device) {
  int64_t strides[kMaxDims];
  int64_t step = 1;
  for (int64_t i = ndim - 1; i >= 0; --i) {
    strides[i] = step;
    step *= sizes[i] > 1 ? sizes[i] : 1;
  }
  AtenTensorHandle handle = nullptr;
  const AOTITorchError status =
      aoti_torch_empty_strided(ndim, sizes, strides, dtype, device.type, device.index, &handle);
  return Handle(status == AOTI_TORCH_SUCCESS ? handle : nullptr);
}

/// Raises torch.OutOfMemoryError for a tensor on a CUDA device that torch could not allocate. Returns where torch can
/// allocate it now. torch/out_of_memory.cc says how.
void raise_out_of_memory(int64_t ndim, const int64_t* sizes, int32_t dtype, Device device);

/// check() for a call that computes with torch and allocates at most `bytes` bytes. Raises torch.OutOfMemoryError where
/// these are not to be had.
inline void check_computed(AOTITorchError status, const char* call, Device device, int64_t bytes) {
  if (status == AOTI_TORCH_SUCCESS) return;
  const int64_t sizes[] = {bytes};
  raise_out_of_memory(1, sizes, aoti_torch_dtype_uint8(), device);
  check(status, call);
}

/// A new contiguous tensor, whose memory is not initialised. Raises torch.OutOfMemoryError where there is no memory.
inline Handle empty_contiguous(int64_t ndim, const int64_t* sizes, int32_t dtype, Device device) {
  Handle handle = try_empty_contiguous(ndim, sizes, dtype, device);
  if (handle) return handle;
  raise_out_of_memory(ndim, sizes, dtype, device);
  handle = try_empty_contiguous(ndim, sizes, dtype, device);
  if (!handle) fail("hgemm: torch failed in empty_strided");
  return handle;
}

/// A view of the same memory with other sizes and strides. It has no autograd state.
inline Handle reinterpret(AtenTensorHandle base, int64_t ndim, const int64_t* sizes, const int64_t* strides,
                          int64_t offset = 0) {
  AtenTensorHandle handle = nullptr;
  check(aoti_torch__reinterpret_tensor(base, ndim, sizes, strides, offset, &handle), "reinterpret_tensor");
  return Handle(handle);
}

/// The contiguous copy of an operand that a kernel, or torch, needs, in memory that is allocated for it.
inline Handle contiguous_copy(const Tensor& t, const Copy& copy, Handle result) {
  const Handle source = reinterpret(t.handle.get(), copy.ndim, copy.sizes, copy.strides);
  check(aoti_torch_copy_(result.get(), source.get(), 0), "copy_");
  return result;
}

/// torch's current CUDA stream of a device.
inline Stream current_stream(Device device) {
  if (aoti_torch_get_current_cuda_stream == nullptr) fail("hgemm: this PyTorch has no CUDA support");
  Stream stream = nullptr;
  check(aoti_torch_get_current_cuda_stream(device.index, &stream), "get_current_cuda_stream");
  return stream;
}

}  // namespace hgemm
