// What torch's dispatcher would make of a call, found out without it: by the dispatch keys of its tensors and of the
// thread. Only for calls that found `key_sets` filled in: hgemm_autograd_start() refuses where a symbol is missing.
#pragma once

#include "dispatch/c_api.h"
#include "torch/tensor_access.h"
#include "torch/torch_symbols.h"

namespace hgemm {

/// What Python told; all 0 until then.
extern HgemmKeySets key_sets;

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

/// The TensorImpl of a handle, which points to an at::Tensor, which is a pointer to its TensorImpl.
inline const uint64_t* impl_of(AtenTensorHandle handle) {
  return *reinterpret_cast<const uint64_t* const*>(handle);
}

/// The keys, out of some, at which the dispatcher would look for a call with only one tensor.
class NextKeys {
 public:
  explicit NextKeys(uint64_t out_of) {
    const ThreadKeys thread = c10_thread_keys;
    included_ = thread.included ^ key_sets.included;
    considered_ = out_of & ~(thread.excluded ^ key_sets.excluded);
  }
  uint64_t of(AtenTensorHandle handle) const { return (impl_of(handle)[key_sets.key_word] | included_) & considered_; }

 private:
  uint64_t included_, considered_;
};

/// Whether the Python kernel is to see a call with this argument: a gradient is wanted, which is asked as torch's
/// generated kernels ask (so it holds under functorch), or the next to see it is Python anyway.
inline bool goes_to_python(AtenTensorHandle handle) {
  const void* impl = impl_of(handle);
  if (at_is_subclass(handle) || (c10_requires_grad(impl) && aoti_torch_grad_mode_is_enabled())) return true;
  const void* tangent = c10_tangent(impl, 0, handle);
  bool defined = false;
  check(aoti_torch_is_defined(static_cast<AtenTensorHandle>(const_cast<void*>(tangent)), &defined), "is_defined");
  return defined;
}

}  // namespace hgemm
