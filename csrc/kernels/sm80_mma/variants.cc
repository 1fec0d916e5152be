// The variants of sm80_mma: which problems each one can run, and its predicted time.
#include <algorithm>
#include <array>
#include <cstdint>

#include "core/cost.h"
#include "core/problem.h"
#include "core/variant_list.h"
#include "kernels/sm80_mma/config.h"
#include "kernels/sm80_mma/list.h"
#include "kernels/variants.h"
#include "tile/pad.h"
#include "tile/slabs.h"

namespace hgemm {
namespace {

/// A kernel of list.h as plain values.
struct Line {
  Tile tile;
  int smem_bytes;
  int registers;  // per thread, estimated
  sm80_mma::Unaligned unaligned;
  double rate;
};

// The registers of a thread: accumulators (and as many sums if they are carried), two sets of fragments, and about 70
// for addresses and the loop.
constexpr int registers(int wm, int wn, bool carries) {
  return std::min(255, wm * wn / 32 * (carries ? 2 : 1) + 2 * (wm + wn) / 16 * 4 + 70);
}

template <class C>
constexpr Line kLine = {
    .tile = {.bm = C::BM, .bn = C::BN, .bk = C::BK, .stages = C::STAGES, .threads = C::kThreads},
    .smem_bytes = C::kSmemBytes,
    .registers = registers(C::WM, C::WN, C::kCarries),
    .unaligned = C::kUnaligned,
    .rate = std::get<sm80_mma::Kernel<C>>(sm80_mma::kKernels).rate,
};

constexpr int kMaxSplits = 32;
constexpr int kMinTilesPerSplit = 4;  // k-tiles per slice; with fewer the pipeline never fills
constexpr double kNarrowRate = 0.32;  // share of the aligned rate when operands pass through registers; measured
// Slices of kCarriedK have a few k-tiles each, so their pipelines never fill, and all of them are added one by one.
// Measured on an H200.
constexpr double kSlicesFactor = 1.5, kSliceUs = 0.45;
// Microseconds of an SM for each result to which a C is added, measured at four batches on an H200.
constexpr double kAddendUs = 6e-4;
constexpr double kPadBandwidth = 0.6;  // share of the read bandwidth that a padding copy reaches; measured

/// Output tiles of the whole batch.
int64_t tile_count(const Problem& p, const Tile& t) {
  return ceil_div(p.m, t.bm) * ceil_div(p.n, t.bn) * p.batches();
}

int ctas_per_sm(const DeviceFacts& facts, const Line& line) {
  return resident_ctas(facts, line.smem_bytes, line.tile.threads, line.registers);
}

/// The number of slices of K with which the blocks fill the chip once. It is smaller where a slice would otherwise have
/// fewer than kMinTilesPerSplit k-tiles, which would not pay for its epilogue.
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

/// The ways to run a kernel. Each is a variant of its own.
enum class Form {
  kDirect,
  kSplitK,         // K is cut into as many slices as fill the chip, or into those of Sums::kFourSlices
  kCarriedSlices,  // K is cut into slices of kCarriedK, whose sums are added in their order (Sums::kCarried)
  kPad,
};

int splits_of(const Problem& p, const DeviceFacts& facts, const Line& line, Form form) {
  switch (form) {
    case Form::kSplitK: return sums_in_slices(p, facts) ? kSlices : split_count(p, facts, line);
    case Form::kCarriedSlices: return static_cast<int>(std::max<int64_t>(1, ceil_div(p.k, kCarriedK)));
    default: return 1;
  }
}

Pads pads_of(const Problem& p) {
  return {!sm80_mma::is_wide_a(p), !sm80_mma::is_wide_b(p)};
}

/// The time to move so many bytes in padding copies.
double pad_us(double bytes, const DeviceFacts& facts) {
  return bytes / (kPadBandwidth * dram_gbs(facts) * 1e3);
}

double gemm_us(const Problem& p, const DeviceFacts& facts, const Line& line, Form form) {
  const bool narrow = form != Form::kPad && !is_wide(p);
  const double rate = line.rate * (narrow ? kNarrowRate : 1.0) * chip_of(facts.cc).mma_flops;
  const int splits = splits_of(p, facts, line, form);
  double us = tiled_gemm_us(p, facts, {line.tile, ctas_per_sm(facts, line), rate, splits});
  if (p.c.data != nullptr) us += kAddendUs * static_cast<double>(p.m) * p.n * p.batches() / facts.sm_count;
  return form == Form::kCarriedSlices ? kSlicesFactor * us + kSliceUs * splits : us;
}

/// The slabs of the padded copies.
tile::Slabs slabs_of(const Problem& p, const DeviceFacts& facts, const Line& line) {
  return tile::fewest_slabs(p, static_cast<size_t>(p.most_workspace), PaddedBytes(pads_of(p)), [&] {
    return tile::SlabCost{
        .tile_m = line.tile.bm,
        .tile_n = line.tile.bn,
        .at_once = int64_t{std::max(1, facts.sm_count)} * ctas_per_sm(facts, line),
        .gemm_us = gemm_us(p, facts, line, Form::kPad),
        .us_per_byte = pad_us(2.0, facts),
        .launch_us = 2 * cost::kLaunchUs,
    };
  });
}

/// Bytes of the workspace: the slices' partial sums or the padded copies.
size_t workspace(const Problem& p, const DeviceFacts& facts, const Line& line, Form form) {
  if (form == Form::kPad) return slabs_of(p, facts, line).workspace();
  const int splits = splits_of(p, facts, line, form);
  return splits > 1 ? sizeof(float) * static_cast<size_t>(splits) * p.batches() * p.m * p.n : 0;
}

bool eligible(const Problem& p, const DeviceFacts& facts, const Line& line, Form form, Reason* why) {
  const auto tiles = static_cast<long long>(tile_count(p, line.tile));
  const int splits = splits_of(p, facts, line, form);
  if (!has_countable_extents(p, why)) return false;
  if (tiles * splits > INT32_MAX) return refuse(why, "needs %lld blocks, a grid has at most 2^31 - 1", tiles * splits);
  if (form == Form::kSplitK && splits < 2) {
    return refuse(why, "no use for split-K: %lld tiles fill the GPU, or K = %lld is too short to split", tiles,
                  static_cast<long long>(p.k));
  }
  if (form == Form::kCarriedSlices || (form == Form::kSplitK && sums_in_slices(p, facts))) {
    const double partial_bytes = 4.0 * splits * static_cast<double>(p.batches()) * p.m * p.n;
    if (splits < 2) return refuse(why, "no use for slices of K: it is %lld", static_cast<long long>(p.k));
    if (partial_bytes > static_cast<double>(p.most_workspace)) {
      return refuse(why, "the sums of %d slices of K need %.0f bytes, and the workspace has at most %lld", splits,
                    partial_bytes, static_cast<long long>(p.most_workspace));
    }
  }
  if (form == Form::kPad && is_wide(p)) return refuse(why, "%s", "A and B are aligned and need no padded copies");
  if (form == Form::kDirect && line.unaligned == sm80_mma::Unaligned::kPad && !is_wide(p)) {
    return refuse(why, "rows of A and B must be 16-byte aligned (got %d and %d) and have a multiple of 8 elements",
                  alignment_a(p), alignment_b(p));
  }
  const auto limit = static_cast<size_t>(p.most_workspace);
  return form != Form::kPad || tile::fit_workspace(tile::any_slab_fits(p, limit, PaddedBytes(pads_of(p))), p, why);
}

double predict_us(const Problem& p, const DeviceFacts& facts, const Line& line, Form form) {
  const double gemm = gemm_us(p, facts, line, form);
  if (form != Form::kPad) return gemm;
  const PaddedBytes bytes(pads_of(p));
  const double copied = 2.0 * static_cast<double>(bytes.a(p) + bytes.b(p));
  return gemm + cost::kLaunchUs + pad_us(copied, facts) + slabs_of(p, facts, line).extra_us;
}

/// The functions of a Variant, bound to one kernel and form.
template <class C, Form kForm>
struct Functions {
  static bool eligible(const Problem& p, const DeviceFacts& facts, Reason* why) {
    return hgemm::eligible(p, facts, kLine<C>, kForm, why);
  }
  static size_t workspace(const Problem& p, const DeviceFacts& facts) {
    return hgemm::workspace(p, facts, kLine<C>, kForm);
  }
  static double predict_us(const Problem& p, const DeviceFacts& facts) {
    return hgemm::predict_us(p, facts, kLine<C>, kForm);
  }
  static Status launch(const Problem& p, const DeviceFacts& facts, void* workspace, Stream stream) {
    if constexpr (kForm == Form::kPad) {
      const Pads pads = pads_of(p);
      const tile::Slabs slabs = slabs_of(p, facts, kLine<C>);
      const PadMemory memory = pad_memory(slabs, workspace);
      return tile::for_each_slab(p, slabs, [&](const Problem& part, const tile::Changed& changed) {
        if (const Status e = launch_pad(part, facts, pads, changed, memory, stream); e != 0) return e;
        return launch_dtype(padded_problem(part, pads, memory), {.splits = 1, .padded = true}, nullptr, stream);
      });
    } else {
      const bool in_slices = C::kCarries && sums_in_slices(p, facts);
      return launch_dtype(p, {.splits = splits_of(p, facts, kLine<C>, kForm), .in_slices = in_slices}, workspace,
                          stream);
    }
  }

 private:
  static Status launch_dtype(const Problem& p, sm80_mma::Schedule schedule, void* workspace, Stream stream) {
    if (p.dtype == DType::kF16) return call<&sm80_mma::launch<C, DType::kF16>>(p, schedule, workspace, stream);
    return call<&sm80_mma::launch<C, DType::kBF16>>(p, schedule, workspace, stream);
  }
};

constexpr Cut cut_of(Form form) {
  Cut cut;
  cut.pads = form == Form::kPad;
  cut.shares_k = form == Form::kSplitK || form == Form::kCarriedSlices;
  return cut;
}

/// With split-K the summation order varies: the number of slices depends on M, the batch and the device.
template <class C>
constexpr Sums sums_of(Form form) {
  if (form == Form::kSplitK) return Sums::kVaries;
  return C::kCarries || form == Form::kCarriedSlices ? Sums::kCarried : Sums::kInOrder;
}

constexpr const char* suffix_of(Form form) {
  switch (form) {
    case Form::kPad: return "_pad";
    case Form::kSplitK: return "_splitk";
    case Form::kCarriedSlices: return "_carried_slices";
    default: return "";
  }
}

template <class C, Form kForm>
constexpr Name kName = name_of("sm80_mma_", C::BM, "x", C::BN, "x", C::BK, "_w", C::WM, "x", C::WN, "_s", C::STAGES,
                               C::kCarries ? "_carried" : "", suffix_of(kForm));

template <class C, Form kForm>
constexpr Variant variant() {
  Variant v = variant_of<Functions<C, kForm>>(kName<C, kForm>, Family::kSm80Mma, kHalfTypes, kLine<C>);
  v.splits_k = kForm == Form::kSplitK;
  v.cut = cut_of(kForm);
  v.sums = sums_of<C>(kForm);
  v.only_invariant = v.sums == Sums::kCarried;
  v.also_four_slices = C::kCarries || kForm == Form::kSplitK;
  return v;
}

template <class C>
constexpr auto variants_of(const sm80_mma::Kernel<C>&) {
  constexpr bool kPads = C::kUnaligned == sm80_mma::Unaligned::kPad;
  constexpr sm80_mma::Kernel<C> kKernel = std::get<sm80_mma::Kernel<C>>(sm80_mma::kKernels);
  return concatenate(array_if<true>(variant<C, Form::kDirect>()), array_if<kPads>(variant<C, Form::kPad>()),
                     array_if<kKernel.splits_k>(variant<C, Form::kSplitK>()),
                     array_if<kKernel.carries_slices>(variant<C, Form::kCarriedSlices>()));
}

constexpr auto kVariants = variants_of_list(sm80_mma::kKernels, [](auto kernel) { return variants_of(kernel); });

}  // namespace

const VariantList kSm80MmaVariants = kVariants;

}  // namespace hgemm
