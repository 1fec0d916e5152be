#include "dispatch/invariance.h"

#include <atomic>

#include "dispatch/context.h"
#include "dispatch/select.h"

namespace hgemm {
namespace {

std::atomic<NumericsMode> the_default{NumericsMode::kFast};
std::atomic<Float32Mode> the_default_float32{Float32Mode::kStrict};

}  // namespace

void ask_for(NumericsMode numerics, Float32Mode float32, Problem* p) {
  p->numerics = numerics;
  p->float32 = p->dtype == DType::kF32 ? float32 : Float32Mode::kStrict;
  if (numerics == NumericsMode::kFast || p->bias == nullptr || p->alpha == 1.0f) return;
  p->c = {const_cast<void*>(p->bias), 0, 1, {0, 0}};
  p->c_dtype = p->dtype;
  p->beta = 1.0f;
  p->bias = nullptr;
}

std::string unheld(const Problem& p, const std::string& why) {
  return "hgemm: numerics=\"batch_invariant\" cannot be held for " + describe(p) + ": " + why;
}

NumericsMode standing_numerics() {
  const int asked = context_settings().numerics;
  return asked == kAuto ? default_numerics() : static_cast<NumericsMode>(asked);
}

void set_default_numerics(NumericsMode numerics) {
  the_default.store(numerics, std::memory_order_relaxed);
}

NumericsMode default_numerics() {
  return the_default.load(std::memory_order_relaxed);
}

Float32Mode standing_float32() {
  const int asked = context_settings().float32;
  return asked == kAuto ? default_float32() : static_cast<Float32Mode>(asked);
}

void set_default_float32(Float32Mode float32) {
  the_default_float32.store(float32, std::memory_order_relaxed);
}

Float32Mode default_float32() {
  return the_default_float32.load(std::memory_order_relaxed);
}

}  // namespace hgemm
