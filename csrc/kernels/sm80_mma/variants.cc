// The list of sm80_mma kernels: what each one serves and what it is predicted to take.
#include "kernels/sm80_mma/config.h"

#include <algorithm>
#include <iterator>

#include "core/cost.h"
#include "core/problem.h"
#include "core/variant_list.h"
#include "kernels/variants.h"
#include "tile/pad.h"

namespace hgemm {
namespace {

/// One line of list.inc as values.
struct Line {
  Tile tile;
  int smem_bytes;
  int registers;  // a thread's, about
  sm80_mma::Unaligned unaligned;
  double rate;
};

constexpr int kMaxSplits = 32;
constexpr int kMinTilesPerSplit = 4;   // fewer and the ring never fills
constexpr double kNarrowRate = 0.32;   // measured share of the aligned rate when operands pass through registers
constexpr double kPadBandwidth = 0.6;  // measured share of the read stream that a padding copy reaches

int64_t tile_count(const Problem& p, const Tile& t) {
  return ceil_div(p.m, t.bm) * ceil_div(p.n, t.bn) * p.batches();
}

int ctas_per_sm(const DeviceFacts& facts, const Line& line) {
  return resident_ctas(facts, line.smem_bytes, line.tile.threads, line.registers);
}

/// Slices of K that fill the chip once, each deep enough to be worth its epilogue.
int split_count(const Problem& p, const DeviceFacts& facts, const Line& line) {
  const int64_t tiles = std::max<int64_t>(tile_count(p, line.tile), 1);
  const int64_t k_tiles = ceil_div(p.k, line.tile.bk);
  const int64_t slots = static_cast<int64_t>(facts.sm_count) * ctas_per_sm(facts, line);
  const int64_t wanted = std::min<int64_t>({slots / tiles, k_tiles / kMinTilesPerSplit, kMaxSplits});
  if (wanted < 2) return 1;
  return static_cast<int>(ceil_div(k_tiles, ceil_div(k_tiles, wanted)));  // no slice is empty
}

bool is_wide(const Problem& p) {
  return sm80_mma::is_wide_a(p) && sm80_mma::is_wide_b(p);
}

/// The ways to run one configuration; each is a variant.
enum class Form { kDirect, kSplitK, kPad };

int splits_of(const Problem& p, const DeviceFacts& facts, const Line& line, Form form) {
  return form == Form::kSplitK ? split_count(p, facts, line) : 1;
}

bool eligible(const Problem& p, const DeviceFacts& facts, const Line& line, Form form, Reason* why) {
  constexpr int64_t kMaxExtent = int64_t{1} << 30;
  const auto tiles = static_cast<long long>(tile_count(p, line.tile));
  const int splits = splits_of(p, facts, line, form);
  if (p.m > kMaxExtent || p.n > kMaxExtent || p.k > kMaxExtent) {
    return refuse(why, "M, N and K must be at most 2^30, got %lld, %lld, %lld", static_cast<long long>(p.m),
                  static_cast<long long>(p.n), static_cast<long long>(p.k));
  }
  if (tiles * splits > INT32_MAX) return refuse(why, "needs %lld blocks, a grid holds 2^31 - 1", tiles * splits);
  if (form == Form::kSplitK && splits < 2) {
    return refuse(why, "%lld tiles fill the device, or K = %lld is too short to split", tiles,
                  static_cast<long long>(p.k));
  }
  if (form == Form::kPad && is_wide(p)) return refuse(why, "%s", "A and B need no padding");
  if (form == Form::kDirect && line.unaligned == sm80_mma::Unaligned::kPad && !is_wide(p)) {
    return refuse(why, "rows of A and B must start on 16 bytes (got %d and %d) and hold a multiple of 8 elements",
                  alignment_a(p), alignment_b(p));
  }
  return true;
}

Pads pads_of(const Problem& p) {
  return {!sm80_mma::is_wide_a(p), !sm80_mma::is_wide_b(p)};
}

size_t workspace(const Problem& p, const DeviceFacts& facts, const Line& line, Form form) {
  switch (form) {
    case Form::kSplitK:
      return sizeof(float) * static_cast<size_t>(split_count(p, facts, line)) * p.batches() * p.m * p.n;
    case Form::kPad: return padded_bytes(p, pads_of(p));
    default: return 0;
  }
}

double predict_us(const Problem& p, const DeviceFacts& facts, const Line& line, Form form) {
  const bool narrow = form != Form::kPad && !is_wide(p);
  const double rate = line.rate * (narrow ? kNarrowRate : 1.0) * chip_of(facts.cc).mma_flops;
  const double gemm =
      tiled_gemm_us(p, facts, {line.tile, ctas_per_sm(facts, line), rate, splits_of(p, facts, line, form)});
  if (form != Form::kPad) return gemm;
  const double copied = 2.0 * static_cast<double>(workspace(p, facts, line, form));
  return gemm + cost::kLaunchUs + copied / (kPadBandwidth * dram_gbs(facts) * 1e3);
}

using Launcher = Status (*)(const Problem&, sm80_mma::Schedule, void* workspace, Stream);

Status launch(const Problem& p, const DeviceFacts& facts, const Line& line, Form form, Launcher launcher,
              void* workspace, Stream stream) {
  if (form != Form::kPad) return launcher(p, {splits_of(p, facts, line, form), false}, workspace, stream);
  const Pads pads = pads_of(p);
  if (const Status e = launch_pad(p, facts, pads, workspace, stream); e != 0) return e;
  return launcher(padded_problem(p, pads, workspace), {1, true}, nullptr, stream);
}

/// The functions of a Variant for one line and form: compile-time arguments, so that they need no closure.
template <const Line& kLine, Launcher kF16, Launcher kBF16, Form kForm>
struct Functions {
  static bool eligible(const Problem& p, const DeviceFacts& facts, Reason* why) {
    return hgemm::eligible(p, facts, kLine, kForm, why);
  }
  static size_t workspace(const Problem& p, const DeviceFacts& facts) {
    return hgemm::workspace(p, facts, kLine, kForm);
  }
  static double predict_us(const Problem& p, const DeviceFacts& facts) {
    return hgemm::predict_us(p, facts, kLine, kForm);
  }
  static Status launch(const Problem& p, const DeviceFacts& facts, void* workspace, Stream stream) {
    return hgemm::launch(p, facts, kLine, kForm, p.dtype == DType::kF16 ? kF16 : kBF16, workspace, stream);
  }
};

// Accumulators, two sets of fragments, and about 70 for addresses and the loop.
constexpr int registers(int wm, int wn) {
  return std::min(255, wm * wn / 32 + 2 * (wm + wn) / 16 * 4 + 70);
}

template <class C>
constexpr Line line_of(sm80_mma::Unaligned unaligned, double rate) {
  return {{C::BM, C::BN, C::BK, C::STAGES, C::kThreads}, C::kSmemBytes, registers(C::WM, C::WN), unaligned, rate};
}

constexpr Cut cut_of(Form form) {
  Cut cut;
  cut.pads = form == Form::kPad;
  cut.shares_k = form == Form::kSplitK;
  return cut;
}

/// How many slices there are depends on M, the batch and the device.
constexpr Sums sums_of(Form form) {
  return form == Form::kSplitK ? Sums::kVaries : Sums::kInOrder;
}

constexpr auto PAD = sm80_mma::Unaligned::kPad, NARROW = sm80_mma::Unaligned::kNarrow;

#define SM80_MMA(BM, BN, BK, WM, WN, STAGES, UNALIGNED, SPLIT_K, RATE) \
  constexpr Line kLine_##BM##x##BN##x##BK##_w##WM##x##WN##_s##STAGES = \
      line_of<sm80_mma::Config<BM, BN, BK, WM, WN, STAGES>>(UNALIGNED, RATE);
#include "kernels/sm80_mma/list.inc"
#undef SM80_MMA

#define SM80_MMA_FORM(ID, FORM, SUFFIX)                                                                          \
  half_variant<Functions<kLine_##ID, sm80_mma::launch_f16_##ID, sm80_mma::launch_bf16_##ID, FORM>>(              \
      "sm80_mma_" #ID SUFFIX, Family::kSm80Mma, sums_of(FORM), 80, kAnyNewer, kLine_##ID, FORM == Form::kSplitK, \
      cut_of(FORM)),
#define SM80_MMA_FORMS(ID, UNALIGNED, SPLIT_K) \
  SM80_MMA_FORM(ID, Form::kDirect, "") SM80_MMA_##UNALIGNED(ID) SM80_MMA_SPLIT_K_##SPLIT_K(ID)
#define SM80_MMA_NARROW(ID)
#define SM80_MMA_PAD(ID) SM80_MMA_FORM(ID, Form::kPad, "_pad")
#define SM80_MMA_SPLIT_K_0(ID)
#define SM80_MMA_SPLIT_K_1(ID) SM80_MMA_FORM(ID, Form::kSplitK, "_splitk")

}  // namespace

const Variant kSm80MmaVariants[] = {
#define SM80_MMA(BM, BN, BK, WM, WN, STAGES, UNALIGNED, SPLIT_K, RATE) \
  SM80_MMA_FORMS(BM##x##BN##x##BK##_w##WM##x##WN##_s##STAGES, UNALIGNED, SPLIT_K)
#include "kernels/sm80_mma/list.inc"
#undef SM80_MMA
};
const int kSm80MmaVariantCount = static_cast<int>(std::size(kSm80MmaVariants));

}  // namespace hgemm
