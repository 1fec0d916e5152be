// What ran an operator before the override: torch's own kernel, or that of another package.
//
// Other packages override matmuls at the same key, from Python (`Library("aten", "IMPL")`) or from C++
// (TORCH_LIBRARY_IMPL). Torch's dispatcher runs the kernel that was registered last. The override is registered once
// and stays, so
//   - a kernel that was registered before the override runs wherever no kernel of ours does. This file keeps it;
//   - a kernel that is registered after the override takes its place, until it is removed again. Torch sees to that.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <atomic>
#include <string>
#include <type_traits>
#include <utility>

namespace hgemm {

/// The computed kernel of an operator ("mm.out") at a dispatch key: the one that the dispatcher runs there now. Throws
/// where there is none.
inline c10::SafeKernelFunction kernel_at(const std::string& name, c10::DispatchKey key) {
  const size_t dot = name.find('.');
  const std::string overload = dot == std::string::npos ? "" : name.substr(dot + 1);
  return c10::Dispatcher::singleton()
      .findSchemaOrThrow(("aten::" + name.substr(0, dot)).c_str(), overload.c_str())
      .getComputedKernelForDispatchKey(key);
}

/// One operator's kernel before the override. Torch's own kernel is not kept, because a direct call of torch's C++
/// function costs less: the dispatcher hands out kernels that can only be called with boxed arguments.
class Earlier {
 public:
  /// Keeps the operator's kernel if another package registered it. To be called before the override is registered.
  void look_up(const std::string& name, c10::DispatchKey key) {
    c10::SafeKernelFunction found = kernel_at(name, key);
    is_torchs_python_ = found.debug().find("/torch/_native/") != std::string::npos;
    // The text says where a kernel was registered. Torch's own are registered in files that its build generates. If it
    // is worded differently one day, torch's kernels are called with boxed arguments: slower, with the same result.
    const std::string torchs_file = std::string("aten/src/ATen/Register") + c10::toString(key);
    if (found.debug().find(torchs_file) != std::string::npos) return;
    kernel_.store(new c10::SafeKernelFunction(std::move(found)));  // never freed: other threads may be calling it
  }

  /// Whether the kernel is one that torch registered from Python. torch 2.12 and newer have one for aten::bmm. It
  /// computes outer products, and passes all others on to torch's C++ function.
  bool is_torchs_python() const { return is_torchs_python_; }

  /// Calls the kept kernel, or `torchs`, torch's own function, if there is none. The arguments are in the order of the
  /// operator's schema, and `keys` are those that the dispatcher passed to the override.
  template <class Torchs, class... Args>
  decltype(auto) operator()(c10::DispatchKeySet keys, const Torchs& torchs, Args&&... args) {
    using Result = std::invoke_result_t<const Torchs&, Args&...>;
    if (const c10::SafeKernelFunction* kernel = kernel_.load(std::memory_order_acquire)) {
      torch::jit::Stack stack;
      torch::jit::push(stack, args...);
      if (call(*kernel, keys, &stack)) {
        if constexpr (std::is_reference_v<Result>) {
          return static_cast<Result>(written(args...));
        } else {
          return static_cast<Result>(std::move(stack.at(0)).toTensor());
        }
      }
    }
    return static_cast<Result>(torchs(args...));
  }

 private:
  /// Returns false if the kernel has been removed since it was looked up. The token that says so is private to torch's
  /// class, so this goes by the error that callBoxed() raises before it calls anything.
  bool call(const c10::SafeKernelFunction& kernel, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
    try {
      kernel.callBoxed(kernel.opHandle(), keys, stack);
      return true;
    } catch (const c10::Error& error) {
      if (error.msg() != "SafeKernelFunction has been invalidated " + kernel.debug()) throw;
      kernel_.store(nullptr, std::memory_order_release);
      return false;
    }
  }

  /// The argument that an operator with a reference as its result writes to: the only one that is not const.
  template <class First, class... Rest>
  static at::Tensor& written(First& first, Rest&... rest) {
    if constexpr (std::is_same_v<First, at::Tensor>) {
      return first;
    } else {
      return written(rest...);
    }
  }

  std::atomic<const c10::SafeKernelFunction*> kernel_{nullptr};
  bool is_torchs_python_ = false;
};

}  // namespace hgemm
