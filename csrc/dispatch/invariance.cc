#include "dispatch/invariance.h"

#include <atomic>

#include "dispatch/context.h"
#include "dispatch/select.h"

namespace hgemm {
namespace {

std::atomic<NumericsMode> the_default{NumericsMode::kFast};

}  // namespace

void ask_for(NumericsMode numerics, Problem* p) {
  p->numerics = numerics;
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
  const int asked = context_numerics();
  return asked == kAuto ? default_numerics() : static_cast<NumericsMode>(asked);
}

void set_default_numerics(NumericsMode numerics) {
  the_default.store(numerics, std::memory_order_relaxed);
}

NumericsMode default_numerics() {
  return the_default.load(std::memory_order_relaxed);
}

}  // namespace hgemm
