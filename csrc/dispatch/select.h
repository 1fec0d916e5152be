// Which kernel serves a problem, and why: pure functions of the problem, the device's facts and the tuned table.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/problem.h"
#include "dispatch/registry.h"

namespace hgemm {

enum class Source : int32_t {
  kForced = 0,    // an argument, the context manager or the environment named the kernel
  kTable = 1,     // this very shape was measured on this GPU
  kModel = 2,     // predicted, where possible corrected by measured shapes nearby
  kFallback = 3,  // no kernel of ours serves the problem
};

struct Decision {
  int32_t variant = kTorch;  // a variant's id, kTorch, or kRefused
  Source source = Source::kFallback;
  float us = 0;        // predicted or measured time of the choice; NaN where it was not needed
  float torch_us = 0;  // and of torch
};

/// Decision::variant when a forced variant cannot serve the problem: see refusal().
constexpr int kRefused = -3;

/// One candidate of an explanation.
struct Candidate {
  int variant;
  bool eligible;
  double predicted_us;  // by the model; NaN when not eligible
  double measured_us;   // in the table; NaN when it does not hold this shape
  std::string reason;   // why not eligible
};

struct Explanation {
  Decision decision;
  std::string reason;
  std::vector<Candidate> candidates;  // every variant in id order, then torch
};

/// THE call of a product: select() behind a cache of this thread, with `forced` == kAuto replaced by standing_choice().
/// Counts the product while a context holds; has a shape that no table holds timed first, where that is asked for
/// (dispatch/tuning.h). The cache key holds every field of the problem except alpha, beta and the
/// addresses, of which it holds the alignment: Variant::eligible and predict_us must not look at more than that.
Decision choose(const Problem& problem, const DeviceFacts& facts, int ordinal, int forced, bool in_backward = false);

/// The decision itself. `forced`: kAuto, kTorch or a variant's id.
Decision select(const Problem& problem, const DeviceFacts& facts, int forced);

/// The decision with everything that went into it.
Explanation explain(const Problem& problem, const DeviceFacts& facts, int forced);

/// The product alone, which is what tables hold.
Problem product_of(const Problem& problem);

/// What a call that asks for nothing gets: the choice of the context that holds, else the default variant. A kernel
/// named there is for the half types, or for what it takes: else kAuto.
int standing_choice(const Problem& problem);

/// Whether a variant can serve a problem; `why`, when given and it cannot, receives every reason, "; " between them.
bool serves(const Variant& v, const Problem& problem, const DeviceFacts& facts, std::string* why);

/// The error text for kRefused: the problem, the reasons, and the variants that can serve it; `forced` is kAuto where
/// no kernel has the problem's `numerics`.
std::string refusal(const Problem& problem, const DeviceFacts& facts, int forced);

/// "float16 NT 4096x4096x4096" with batch, alignment, epilogue where they are not the ordinary ones.
std::string describe(const Problem& problem);

/// "NT", "NN", "TN", "TT": whether A and B are stored transposed (row-major A is N; a row-major weight (n, k) is T).
const char* layout_name(const Problem& problem);

const char* source_name(Source source);

/// What kAuto means: kAuto itself, kTorch or a variant's id (the environment's choice).
void set_default_variant(int id);
int default_variant();

/// Called once per new decision, from the thread that made it; null turns it off.
using LogFn = void (*)(const char* line);
void set_log(LogFn log);

/// Runs once, within the first decision that choose() makes; null takes it back.
using FirstUseFn = void (*)();
void set_first_use(FirstUseFn action);

/// Makes every thread's cache forget: what decisions depend on has changed.
void invalidate_decisions();

}  // namespace hgemm
