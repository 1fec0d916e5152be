// How the ops raise torch.OutOfMemoryError.
//
// The stable ABI turns every error of torch into a status without a type. csrc/aten, which is compiled with torch's own
// headers, has a function that allocates the same tensor again and lets torch's error through. Python finds or compiles
// that library (hgemm_ops/_override.py), at the first failure.
#include <atomic>

#include "dispatch/c_api.h"
#include "torch/tensor_access.h"

namespace hgemm {
namespace {

/// hgemm_aten_allocate of csrc/aten.
using AllocateFn = void (*)(int64_t ndim, const int64_t* sizes, int32_t dtype, int32_t device_index);
using FindFn = const void* (*)();

std::atomic<FindFn> find_allocate{nullptr};

}  // namespace

void raise_out_of_memory(int64_t ndim, const int64_t* sizes, int32_t dtype, Device device) {
  if (device.type != aoti_torch_device_type_cuda()) return;
  const FindFn find = find_allocate.load();
  const void* const allocate = find != nullptr ? find() : nullptr;
  if (allocate != nullptr) return reinterpret_cast<AllocateFn>(allocate)(ndim, sizes, dtype, device.index);
  // Libraries that look for this error without its type look for these words.
  fail("CUDA out of memory. hgemm: torch cannot allocate a tensor of shape " +
       shape_text(static_cast<int>(ndim), sizes));
}

}  // namespace hgemm

void hgemm_set_allocation_failed(const void* (*find)()) {
  hgemm::find_allocate.store(find);
}
