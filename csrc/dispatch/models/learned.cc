#include "dispatch/models/learned.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>

#include "core/chip.h"
#include "core/cost.h"

namespace hgemm {
namespace {

#include "dispatch/models/learned_sm90.inc"  // the build decompresses it

/// One line for each compute capability that has a learned model.
constexpr std::pair<int, const Learned*> kModels[] = {{90, &kLearnedSm90}};

// cuBLAS's time depends on how well its tile fits the shape. Which tile it takes is not known, so there are features of
// all of these.
constexpr int kTorchTiles[][2] = {{128, 256}, {256, 128}, {128, 128}, {64, 256},  {64, 128},
                                  {128, 192}, {192, 128}, {64, 64},   {128, 160}, {128, 96},
                                  {256, 64},  {128, 176}, {128, 144}, {128, 112}, {64, 192}};

float log2f_of(double x) {
  return static_cast<float>(std::log2(x));
}

/// The number of trailing zero bits of the row pitch and the batch stride, in elements: at most 8, and fewer where the
/// alignment is less. With 6, rows start on whole lines of 128 bytes.
float pitch_bits(int64_t pitch, int64_t rows, int64_t batch_stride, int64_t batches, int alignment) {
  constexpr int kMost = 8;
  int bits = kMost;
  const auto limit = [&bits](int64_t stride) {
    int zeros = 0;
    while (zeros < bits && (stride >> zeros & 1) == 0) ++zeros;
    bits = zeros;
  };
  if (rows > 1) limit(pitch);
  if (batches > 1 && batch_stride != 0) limit(batch_stride);
  if (alignment < 16) limit(alignment / 2);
  return static_cast<float>(bits);
}

struct Waves {
  double tiles_m, tiles_n, units, waves, whole;
};

Waves waves_of(const Problem& p, const DeviceFacts& facts, int bm, int bn, int cm, int cn, int ck) {
  const auto up = [](int64_t x, int64_t by) { return static_cast<double>((x + by - 1) / by); };
  const double units = up(p.m, int64_t{bm} * cm) * up(p.n, int64_t{bn} * cn) * static_cast<double>(p.batches());
  const double slots = clusters_at_once(facts, cm * cn * ck);
  return {.tiles_m = up(p.m, bm),
          .tiles_n = up(p.n, bn),
          .units = units,
          .waves = units / slots,
          .whole = std::ceil(units / slots)};
}

}  // namespace

int learned_code(Family family) {
  switch (family) {
    case Family::kAdded: return 0;
    case Family::kSm80Mma: return 1;
    case Family::kSm90Wgmma: return 2;
    case Family::kSkinny:
    case Family::kSm90Skinny: return 3;
    case Family::kGemv: return 5;
    case Family::kBatchedMma: return 6;
    case Family::kSm90Split: return 7;
    case Family::kSimtSkinny: return 8;
    case Family::kSm80Split: return 9;
    case Family::kSimtGemv: return 10;
    case Family::kTinyBatch: return 11;
  }
  return -1;
}

void shape_features(const Problem& p, const Alignments& alignments, float* out) {
  const double m = static_cast<double>(p.m), n = static_cast<double>(p.n), k = static_cast<double>(p.k);
  const double batches = static_cast<double>(p.batches());
  const bool a_k = p.a_major() == Major::kK, b_k = p.b_major() == Major::kK;
  const auto stride = [](const Matrix& x) { return x.batch_stride[1] != 0 ? x.batch_stride[1] : x.batch_stride[0]; };
  const double flops = 2 * m * n * k * batches, bytes = 2 * batches * (m * k + k * n + m * n);
  const float features[kShapeFeatures] = {
      log2f_of(m),
      log2f_of(n),
      log2f_of(k),
      log2f_of(batches),
      log2f_of(flops),
      log2f_of(bytes),
      log2f_of(flops / bytes),
      log2f_of(batches * m * k),
      log2f_of(batches * k * n),
      log2f_of(batches * m * n),
      log2f_of(std::min(m, n)),
      p.dtype == DType::kBF16 ? 1.0f : 0.0f,
      a_k ? 0.0f : 1.0f,
      b_k ? 1.0f : 0.0f,
      pitch_bits(p.lda(), a_k ? p.m : p.k, stride(p.a), p.batches(), alignments.a),
      pitch_bits(p.ldb(), b_k ? p.n : p.k, stride(p.b), p.batches(), alignments.b),
      pitch_bits(p.d.row_stride, p.m, stride(p.d), p.batches(), alignments.d),
      static_cast<float>(alignments.a),
      static_cast<float>(alignments.b),
      static_cast<float>(alignments.d),
  };
  std::copy(features, features + kShapeFeatures, out);
}

void kernel_features(const Variant& v, const Problem& p, const DeviceFacts& facts, double predicted_us, float* out) {
  int bm = v.tile.bm, bn = v.tile.bn, cm = v.cut.cluster_m, cn = v.cut.cluster_n;
  // The columns of its tile lie along the short side of the result.
  const bool is_skinny = v.family == Family::kSkinny || v.family == Family::kSm90Skinny || v.family == Family::kGemv;
  if (v.cut.swaps || (is_skinny && p.m <= p.n)) std::swap(bm, bn), std::swap(cm, cn);
  const Waves w = waves_of(p, facts, bm, bn, cm, cn, v.cut.slices);
  const double m = static_cast<double>(p.m), n = static_cast<double>(p.n);
  const double steps = std::ceil(static_cast<double>(p.k) / v.tile.bk) / v.cut.slices;
  const float predicted = log2f_of(predicted_us);
  const float features[kKernelFeatures - kShapeFeatures] = {
      predicted,
      out[5] - predicted,
      static_cast<float>(w.waves - std::floor(w.waves)),
      static_cast<float>(w.whole),
      log2f_of(w.waves),
      static_cast<float>(w.whole / w.waves),
      log2f_of(w.tiles_m * bm / m),
      log2f_of(w.tiles_n * bn / n),
      log2f_of(steps),
      log2f_of(w.tiles_m * static_cast<double>(p.batches())),
      log2f_of(w.tiles_n),
      static_cast<float>(v.tile.bm),
      static_cast<float>(v.tile.bn),
      static_cast<float>(v.tile.bk),
      static_cast<float>(v.tile.stages),
      static_cast<float>(v.cut.cluster_m),
      static_cast<float>(v.cut.cluster_n),
      static_cast<float>(v.cut.slices),
      static_cast<float>(learned_code(v.family)),
      static_cast<float>(v.cut.pingpong),
      static_cast<float>(v.cut.pads),
      static_cast<float>(v.cut.swaps),
      static_cast<float>(v.cut.edges),
      static_cast<float>(v.cut.shares_k),
      log2f_of(dram_gbs(facts)),
  };
  std::copy(features, features + kKernelFeatures - kShapeFeatures, out + kShapeFeatures);
}

void torch_features(const Problem& p, const DeviceFacts& facts, double predicted_us, double best_us, float* out) {
  float* at = out + kShapeFeatures;
  *at++ = log2f_of(predicted_us);
  *at++ = log2f_of(best_us / predicted_us);
  const double padded_base = static_cast<double>(p.m) * static_cast<double>(p.n);
  for (const auto& [bm, bn] : kTorchTiles) {
    const Waves w = waves_of(p, facts, bm, bn, 1, 1, 1);
    if (at == out + kShapeFeatures + 2) {
      *at++ = log2f_of(w.waves);
      *at++ = log2f_of(std::ceil(static_cast<double>(p.k) / 64));
    }
    *at++ = log2f_of(w.whole / w.waves * (w.tiles_m * bm * w.tiles_n * bn / padded_base));
    *at++ = static_cast<float>(w.whole);
  }
  for (int tile : {0, 2, 3, 5}) {
    const Waves w = waves_of(p, facts, kTorchTiles[tile][0], kTorchTiles[tile][1], 1, 1, 1);
    *at++ = static_cast<float>(w.whole / w.waves);
  }
  *at = log2f_of(dram_gbs(facts));
}

double factor(const Forest& forest, const float* features) {
  int64_t sum = 0;
  const unsigned char *feature = forest.feature, *border = forest.border;
  const signed char* leaf = forest.leaf;
  for (int tree = 0; tree < forest.trees; ++tree) {
    unsigned index = 0;
    for (int i = 0; i < forest.depth; ++i) {
      index |= static_cast<unsigned>(features[feature[i]] > forest.borders[feature[i]][border[i]]) << i;
    }
    sum += int64_t{leaf[index]} * (1 << forest.shift[tree]);
    feature += forest.depth;
    border += forest.depth;
    leaf += size_t{1} << forest.depth;
  }
  return std::exp2(forest.bias + forest.unit * static_cast<double>(sum));
}

void factors(const Forest& forest, const Rows& rows, int count, double* out) {
  using Ints = int __attribute__((vector_size(kLanes * sizeof(int))));
  int sums[kRows] = {};
  const unsigned char *feature = forest.feature, *border = forest.border;
  const signed char* leaf = forest.leaf;
  for (int tree = 0; tree < forest.trees; ++tree) {
    const int scale = 1 << forest.shift[tree];
    float thresholds[kMostDepth];
    for (int i = 0; i < forest.depth; ++i) thresholds[i] = forest.borders[feature[i]][border[i]];
    for (int group = 0; group * kLanes < count; ++group) {
      Ints index = {};
      for (int i = 0; i < forest.depth; ++i) index |= (rows.answers[feature[i]][group] > thresholds[i]) & 1 << i;
      for (int lane = 0; lane < kLanes; ++lane) sums[group * kLanes + lane] += leaf[index[lane]] * scale;
    }
    feature += forest.depth;
    border += forest.depth;
    leaf += size_t{1} << forest.depth;
  }
  for (int row = 0; row < count; ++row) out[row] = std::exp2(forest.bias + forest.unit * sums[row]);
}

const Learned* learned(const DeviceFacts& facts, DType dtype) {
  const bool is_half = dtype == DType::kF16 || dtype == DType::kBF16;
  for (const auto& [cc, model] : kModels) {
    if (facts.cc == cc && is_half && model->kernels.trees > 0) return model;
  }
  return nullptr;
}

double learned_reach(double best_us) {
  return best_us < 100 ? 2.2 : best_us < 400 ? 1.6 : 1.3;
}

}  // namespace hgemm
