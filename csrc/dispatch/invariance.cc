#include "dispatch/invariance.h"

#include <atomic>

#include "core/describe.h"
#include "dispatch/context.h"

namespace hgemm {
namespace {

std::atomic<NumericsMode> the_default{NumericsMode::kFast};
std::atomic<Float32Mode> the_default_float32{Float32Mode::kStrict};

NumericsMode numerics_of(const HgemmSettings& asked) {
  return asked.numerics == kAuto ? default_numerics() : static_cast<NumericsMode>(asked.numerics);
}

Float32Mode float32_of(const HgemmSettings& asked) {
  return asked.float32 == kAuto ? default_float32() : static_cast<Float32Mode>(asked.float32);
}

}  // namespace

void ask_for(NumericsMode numerics, Float32Mode float32, Problem* p) {
  p->numerics = p->dtype == DType::kI8 ? NumericsMode::kFast : numerics;  // any order of int8 sums gives the same bits
  const bool splits_complex =
      p->dtype == DType::kC64 && numerics == NumericsMode::kFast && float32 == Float32Mode::kSplit;
  p->float32 = p->dtype == DType::kF32 || splits_complex ? float32 : Float32Mode::kStrict;
  p->in_slices =
      p->numerics != NumericsMode::kFast && p->is_half() && p->out_dtype != DType::kF32 && has_slices(p->n, p->k);
  if (numerics == NumericsMode::kFast || p->bias == nullptr || p->alpha == 1.0f) return;
  p->c = {const_cast<void*>(p->bias), 0, 1, {0, 0}};
  p->c_dtype = p->dtype;
  p->beta = 1.0f;
  p->bias = nullptr;
}

void ask_for_modes(int numerics, int float32, bool allows_tf32, Problem* p) {
  const HgemmSettings settings = context_settings();
  const NumericsMode numerics_mode = numerics == kAuto ? numerics_of(settings) : static_cast<NumericsMode>(numerics);
  Float32Mode float32_mode = static_cast<Float32Mode>(float32);
  if (float32 == kAuto) {
    float32_mode = float32_of(settings);
    if (float32_mode == Float32Mode::kStrict && allows_tf32) float32_mode = Float32Mode::kTf32;
  }
  ask_for(numerics_mode, float32_mode, p);
}

std::string unheld(const Problem& p, const std::string& why) {
  return "hgemm: numerics=\"batch_invariant\" is not possible for " + describe(p) + ": " + why;
}

NumericsMode standing_numerics() {
  return numerics_of(context_settings());
}

void set_default_numerics(NumericsMode numerics) {
  the_default.store(numerics, std::memory_order_relaxed);
}

NumericsMode default_numerics() {
  return the_default.load(std::memory_order_relaxed);
}

Float32Mode standing_float32() {
  return float32_of(context_settings());
}

void set_default_float32(Float32Mode float32) {
  the_default_float32.store(float32, std::memory_order_relaxed);
}

Float32Mode default_float32() {
  return the_default_float32.load(std::memory_order_relaxed);
}

}  // namespace hgemm
