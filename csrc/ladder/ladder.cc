// The list of the ladder's kernels. They compute row-major GEMMs without an epilogue, and run only when a caller names
// them.
#include "ladder/ladder.h"

#include <algorithm>
#include <utility>

#include "core/cost.h"
#include "core/variant_list.h"
#include "ladder/variants.h"

namespace hgemm {
namespace {

/// The instruction that multiplies: FMA on CUDA cores, mma.sync (also through WMMA), or wgmma.
enum class Unit { kFma, kMma, kWgmma };

/// The values of one line of variants.inc.
struct Line {
  DType dtype;
  Arithmetic arithmetic;
  Unit unit;
  Tile tile;
  int smem_bytes;
};

/// True if the elements of a row are contiguous and rows do not overlap. The stride of an extent of one is ignored.
bool is_row_major(const Matrix& x, int64_t rows, int64_t cols) {
  return (cols <= 1 || x.col_stride == 1) && (rows <= 1 || x.row_stride >= cols);
}

/// The alignment that the addresses of all rows share, in bytes, 16 at most. With a single row, the row stride does not
/// matter.
int row_alignment(const Matrix& x, int64_t rows, DType dtype) {
  return alignment_of(x, dtype, rows > 1 ? x.row_stride : 0, 1, 1);
}

bool eligible(const Problem& p, const Line& line, Reason* why) {
#ifdef HGEMM_NO_SM90A
  if (line.unit == Unit::kWgmma)
    return refuse(why, "%s", "this build has no code for sm_90a: add 90a to HGEMM_CUDA_ARCHS");
#endif
  if (p.batches() != 1)
    return refuse(why, "does not support batches, got %lld matrices", static_cast<long long>(p.batches()));
  if (p.c.data || p.bias || p.pre_activation || p.act != Activation::kNone) {
    return refuse(why, "%s", "has no epilogue");
  }
  if (p.out_dtype != p.dtype) return refuse(why, "%s", "the result must have the dtype of A");
  if (!is_row_major(p.a, p.m, p.k) || !is_row_major(p.b, p.k, p.n)) {
    return refuse(why, "%s", "A and B must be row-major");
  }
  if (p.k == 0) return refuse(why, "%s", "K must be positive, got 0");
  const int align_a = row_alignment(p.a, p.m, p.dtype), align_b = row_alignment(p.b, p.k, p.dtype);
  if (line.unit == Unit::kWgmma && std::min(align_a, align_b) < 16) {
    return refuse(why, "rows of A and B must be 16-byte aligned, got %d and %d", align_a, align_b);
  }
  if (p.m >= kMaxExtent || p.n >= kMaxExtent || p.k >= kMaxExtent) {
    return refuse(why, "M, N and K must be below 2^30, got %lld, %lld and %lld", static_cast<long long>(p.m),
                  static_cast<long long>(p.n), static_cast<long long>(p.k));
  }
  return true;
}

size_t no_workspace(const Problem&, const DeviceFacts&) {
  return 0;
}

/// FLOPs per clock of one SM. An SM does two float16 FMAs in the time of one float32 FMA.
double peak_of(const Line& line, const Chip& chip) {
  switch (line.unit) {
    case Unit::kFma: return chip.simt_flops * (line.arithmetic == Arithmetic::kAccumulateF16 ? 2 : 1);
    case Unit::kMma: return chip.mma_flops;
    case Unit::kWgmma: return chip.peak_flops;
  }
  return chip.simt_flops;
}

/// The predicted time in microseconds, by the roofline of a tile: the peak of its instruction, its bytes from L2 and
/// DRAM, and whole waves. The time is a lower bound; how close a step comes depends on its technique.
double predict_us(const Problem& p, const DeviceFacts& facts, const Line& line) {
  const Tile& t = line.tile;
  const int sum_bytes = line.arithmetic == Arithmetic::kAccumulateF16 ? 2 : 4;
  const int registers = std::min(255, t.bm * t.bn / t.threads * sum_bytes / 4 + 40);
  const int resident = resident_ctas(facts, line.smem_bytes, t.threads, registers);
  return tiled_gemm_us(p, facts, {t, resident, peak_of(line, chip_of(facts.cc)), 1});
}

using Launcher = Status (*)(const ladder::StepProblem&, Stream);

/// The panel width that hgemm_ladder_set_swizzle_stride has set for this thread.
thread_local int swizzle_stride_of_thread = 0;

/// Rounds up to a multiple of 8 elements, which are whole 16-byte chunks for every dtype.
int64_t round_up(int64_t x) {
  return (x + 7) / 8 * 8;
}

Status launch(const Problem& p, Launcher launcher, Stream stream) {
  constexpr Status kNotSupported = 801;       // cudaErrorNotSupported
  if (p.alpha != 1.0f) return kNotSupported;  // eligible() does not see alpha, since decisions are cached without it
  // The canonical form may hold any stride over an extent of one. Launchers take rows that do not overlap.
  ladder::StepProblem plain{p, swizzle_stride_of_thread};
  plain.a.col_stride = plain.b.col_stride = 1;
  if (p.m == 1) plain.a.row_stride = round_up(p.k);
  if (p.k == 1) plain.b.row_stride = round_up(p.n);
  return launcher(plain, stream);
}

/// The functions of a Variant for one line of the list. The line and its launcher are template arguments, so that plain
/// function pointers suffice.
template <const Line& kLine, Launcher kLauncher>
struct Functions {
  static bool eligible(const Problem& p, const DeviceFacts&, Reason* why) { return hgemm::eligible(p, kLine, why); }
  static double predict_us(const Problem& p, const DeviceFacts& facts) { return hgemm::predict_us(p, facts, kLine); }
  static Status launch(const Problem& p, const DeviceFacts&, void*, Stream stream) {
    return hgemm::launch(p, kLauncher, stream);
  }
};

constexpr auto FMA = Unit::kFma, MMA = Unit::kMma, WGMMA = Unit::kWgmma;
constexpr int kHopper = 90;

template <class F>
constexpr Variant make(const char* name, const Line& line) {
  const bool hopper_only = line.unit == Unit::kWgmma;
  return {.name = name,
          .family = Family::kAdded,
          .arithmetic = line.arithmetic,
          .min_cc = hopper_only ? kHopper : 80,
          .max_cc = hopper_only ? kHopper : kAnyNewer,
          .dtypes = 1u << static_cast<int>(line.dtype),
          .tile = line.tile,
          .smem_bytes = line.smem_bytes,
          .splits_k = false,
          .eligible = F::eligible,
          .workspace = no_workspace,
          .predict_us = F::predict_us,
          .launch = F::launch};
}

#define RUNG(NAME, DTYPE, ACC, UNIT, BM, BN, BK, STAGES, THREADS, SMEM, ...) \
  constexpr Line kLine_##NAME = {                                            \
      DType::k##DTYPE, Arithmetic::kAccumulate##ACC, UNIT, {BM, BN, BK, STAGES, THREADS}, SMEM};
#include "ladder/variants.inc"

}  // namespace

const Variant kLadderVariants[] = {
#define RUNG(NAME, DTYPE, ACC, UNIT, BM, BN, BK, STAGES, THREADS, SMEM, ...) \
  make<Functions<kLine_##NAME, ladder::launch_##NAME>>(#NAME, kLine_##NAME),
#include "ladder/variants.inc"
};
const int kLadderVariantCount = static_cast<int>(sizeof(kLadderVariants) / sizeof(Variant));

namespace {

constexpr bool kSwizzles[] = {
#define RUNG(NAME, DTYPE, ACC, UNIT, BM, BN, BK, STAGES, THREADS, SMEM, SWIZZLES, ...) SWIZZLES != 0,
#include "ladder/variants.inc"
};

}  // namespace

namespace ladder {

const Add kAdds[] = {
#define RUNG_ADD(NAME, DTYPE, ...) {#NAME, DType::k##DTYPE, launch_##NAME},
#include "ladder/variants.inc"
};
const int kAddCount = static_cast<int>(sizeof(kAdds) / sizeof(Add));

}  // namespace ladder
}  // namespace hgemm

int hgemm_ladder_install(int (*add_variants)(const void* variants, int count, int variant_bytes, const char* family)) {
  return add_variants(hgemm::kLadderVariants, hgemm::kLadderVariantCount, sizeof(hgemm::Variant), "ladder");
}

int hgemm_ladder_swizzles(int index) {
  return hgemm::kSwizzles[index];
}

int hgemm_ladder_set_swizzle_stride(int columns) {
  return std::exchange(hgemm::swizzle_stride_of_thread, columns);
}

int hgemm_ladder_addition(int index, const char** name) {
  if (index >= hgemm::ladder::kAddCount) return -1;
  *name = hgemm::ladder::kAdds[index].name;
  return static_cast<int>(hgemm::ladder::kAdds[index].dtype);
}
