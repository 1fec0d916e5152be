// What stands in for the ops' CUDA implementation where test_fast_path.py builds their way past autograd for the CPU:
// counts the calls that reach it, and lets the dispatcher go on with them.
#include <torch/csrc/stable/library.h>

#include <string>
#include <vector>

#include "dispatch/c_api.h"
#include "torch/call.h"

namespace stable = torch::stable::detail;

namespace {
int calls = 0;
}

HGEMM_API int calls_without_dispatcher() {
  return calls;
}

hgemm::Handle hgemm::run(const Call& call) {
  ++calls;
  const bool has_input = call.op == Op::kAddmm || call.op == Op::kBaddbmm;
  std::vector<StableIValue> stack;
  if (has_input) stack.push_back(stable::from(another(call.c.handle.get())));
  stack.push_back(stable::from(another(call.a.handle.get())));
  stack.push_back(stable::from(another(call.b.handle.get())));
  if (has_input) {
    stack.push_back(stable::from(call.beta));
    stack.push_back(stable::from(call.alpha));
  } else if (call.op == Op::kLinear) {
    stack.push_back(stable::from(call.c ? std::make_optional(another(call.c.handle.get())) : std::nullopt));
    stack.push_back(stable::from(call.act));
  }
  stack.push_back(stable::from(call.out_dtype));
  stack.push_back(stable::from(std::make_optional(call.variant)));
  stack.push_back(stable::from(std::make_optional(call.static_weights)));
  constexpr const char* kNames[] = {"matmul", "mm", "bmm", "addmm", "baddbmm", "linear"};  // as in Op
  const std::string name = std::string("hgemm::") + kNames[static_cast<int>(call.op)];
  check(torch_call_dispatcher(name.c_str(), "", stack.data(), TORCH_ABI_VERSION), name.c_str());
  return Handle(stable::to<AtenTensorHandle>(stack[0]));
}
