#include "dispatch/models/learned.h"

#ifdef __x86_64__
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"  // GCC 12 warns of its own header
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>
#pragma GCC diagnostic pop
#endif

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <span>
#include <utility>

#include "core/ceil_div.h"
#include "core/chip.h"
#include "core/cost.h"

namespace hgemm {
namespace {

// The build decompresses these files.
namespace h200 {
#include "dispatch/models/learned_h200.inc"
}
namespace h100 {
#include "dispatch/models/learned_h100.inc"
}

/// The forests of one chip, with the facts of the chip that they were fitted to.
struct ChipModel {
  int cc;
  int64_t dram_gbs;
  const Learned* learned;
};

/// Several chips of one compute capability differ most in the bandwidth of their memory. So a GPU gets the forests of
/// the chip whose bandwidth is nearest to its own, as a ratio. An H100 with 2.0 TB/s (PCIe) or 3.9 TB/s (NVL), an H20
/// and a GH200 with 4.0 TB/s get those of the H100 with 3.35 TB/s, and a GH200 with 4.9 TB/s those of the H200. The
/// number of SMs and the size of L2 do not select forests, because predictions and features take them from the GPU.
constexpr ChipModel kModels[] = {{90, 4916, &h200::kLearned}, {90, 3352, &h100::kLearned}};

// cuBLAS's time depends on how well its tile fits the shape. Which tile it takes is not known, so there are features of
// all of these.
constexpr int kTorchTiles[][2] = {{128, 256}, {256, 128}, {128, 128}, {64, 256},  {64, 128},
                                  {128, 192}, {192, 128}, {64, 64},   {128, 160}, {128, 96},
                                  {256, 64},  {128, 176}, {128, 144}, {128, 112}, {64, 192}};

/// Logarithms of the numbers that are asked for most: counts of tiles and of k-tiles.
constexpr int kFewest = 1024;
const auto few_log2 = [] {
  std::array<float, kFewest> all{};
  for (int i = 1; i < kFewest; ++i) all[static_cast<size_t>(i)] = static_cast<float>(std::log2(i));
  return all;
}();

float log2f_of(double x) {
  const int whole = x < kFewest ? static_cast<int>(x) : 0;
  return whole > 0 && whole == x ? few_log2[static_cast<size_t>(whole)] : static_cast<float>(std::log2(x));
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
  double tiles_m, tiles_n, waves, whole;
  double part;  // of the last wave; 0 where it is full
};

Waves waves_of(const Problem& p, const DeviceFacts& facts, int bm, int bn, int cm, int cn, int ck) {
  const auto up = [](int64_t x, int64_t by) { return static_cast<double>(ceil_div(x, by)); };
  const double tiles_m = up(p.m, bm), tiles_n = up(p.n, bn);
  const double units = (cm == 1 ? tiles_m : up(p.m, int64_t{bm} * cm)) *
                       (cn == 1 ? tiles_n : up(p.n, int64_t{bn} * cn)) * static_cast<double>(p.batches());
  const double waves = units / clusters_at_once(facts, cm * cn * ck);
  const double floor = static_cast<double>(static_cast<int64_t>(waves));
  return {.tiles_m = tiles_m,
          .tiles_n = tiles_n,
          .waves = waves,
          .whole = floor < waves ? floor + 1 : floor,
          .part = waves - floor};
}

std::span<const Forest::Run> runs_of(const Forest& forest) {
  return {forest.runs, static_cast<size_t>(forest.run_count)};
}

double result_of(const Forest& forest, int sum) {
  return std::exp2(forest.bias + forest.unit * sum);
}

/// The indices of all trees by their questions about shared features. The bits of the other questions are 0.
void plain_index_trees(const Forest& forest, const float* features, uint8_t* index) {
  int8_t places[kMostShared];
  for (int f = 0; f < forest.shared; ++f) {
    const float* const last = forest.border + forest.first[f + 1];
    places[f] = static_cast<int8_t>(
        std::count_if(forest.border + forest.first[f], last, [&](float border) { return features[f] > border; }));
  }
  const uint8_t* feature = forest.feature;
  const int8_t* place = forest.place;
  for (int tree = 0; tree < forest.trees; tree += kTogether, index += kTogether) {
    std::fill_n(index, kTogether, uint8_t{0});
    for (int bit = 0; bit < forest.depth; ++bit) {
      for (int i = 0; i < kTogether; ++i) {
        index[i] = static_cast<uint8_t>(index[i] | (places[*feature++] > *place++) << bit);
      }
    }
  }
}

#ifdef __x86_64__

const bool has_avx2 = __builtin_cpu_supports("avx2") != 0;
const bool has_vbmi = __builtin_cpu_supports("avx512vbmi") != 0 && __builtin_cpu_supports("avx512vl") != 0 &&
                      __builtin_cpu_supports("avx512bw") != 0;

constexpr float kInfinite = 1e30f;  // borders

/// Which of kLanes borders a value is above, as bits.
[[gnu::target("avx2"), gnu::always_inline]] inline unsigned above(__m256 value, const float* borders) {
  return static_cast<unsigned>(_mm256_movemask_ps(_mm256_cmp_ps(value, _mm256_loadu_ps(borders), _CMP_GT_OQ)));
}

/// The place of a feature. The pivots tell which of the borders are left to be compared with.
[[gnu::target("avx2,popcnt"), gnu::always_inline]] inline int8_t place_of(const Forest& forest, int f, float feature) {
  const __m256 value = _mm256_set1_ps(feature);
  const float* const pivots = forest.pivot + kPivots * f;
  const int below = kLanes * __builtin_popcount(above(value, pivots) | above(value, pivots + kLanes) << kLanes);
  return static_cast<int8_t>(below + __builtin_popcount(above(value, forest.border + forest.first[f] + below)));
}

/// plain_index_trees(), for kTogether trees at a time.
[[gnu::target("avx2,popcnt")]] void avx2_index_trees(const Forest& forest, const float* features, uint8_t* index) {
  alignas(16) int8_t places[kMostShared];
  for (int f = 0; f < forest.shared; ++f) places[f] = place_of(forest, f, features[f]);
  __m256i tables[kMostShared / 16];  // the places of 16 features each, which one shuffle looks up
#pragma GCC unroll 4
  for (int i = 0; i < kMostShared / 16; ++i) {
    tables[i] = _mm256_broadcastsi128_si256(_mm_load_si128(reinterpret_cast<const __m128i*>(places + 16 * i)));
  }
  const __m256i beyond = _mm256_set1_epi8(0x70), table = _mm256_set1_epi8(16);
  const auto* feature = reinterpret_cast<const __m256i*>(forest.feature);
  const auto* least = reinterpret_cast<const __m256i*>(forest.place);
  for (int tree = 0; tree < forest.trees; tree += kTogether, index += kTogether) {
    __m256i indices = _mm256_setzero_si256(), mask = _mm256_set1_epi8(1);
    for (int bit = 0; bit < forest.depth; ++bit) {
      __m256i at = _mm256_loadu_si256(feature++), place = _mm256_setzero_si256();
#pragma GCC unroll 4
      for (int i = 0; i < kMostShared / 16; ++i) {
        // A shuffle gives 0 where the index has its highest bit, as indices outside of the table then have.
        place = _mm256_or_si256(place, _mm256_shuffle_epi8(tables[i], _mm256_adds_epu8(at, beyond)));
        at = _mm256_sub_epi8(at, table);
      }
      const __m256i above = _mm256_cmpgt_epi8(place, _mm256_loadu_si256(least++));
      indices = _mm256_or_si256(indices, _mm256_and_si256(above, mask));
      mask = _mm256_add_epi8(mask, mask);
    }
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(index), indices);
  }
}

/// The same where a permutation takes 64 bytes from a register: VBMI, which Ice Lake and Zen 4 brought.
[[gnu::target("avx512f,avx512bw,avx512vl,avx512vbmi,popcnt")]] void vbmi_index_trees(const Forest& forest,
                                                                                     const float* features,
                                                                                     uint8_t* index) {
  alignas(64) int8_t places[kMostShared];
  for (int f = 0; f < forest.shared; ++f) places[f] = place_of(forest, f, features[f]);
  const __m512i table = _mm512_load_si512(places);
  const uint8_t* feature = forest.feature;
  const int8_t* least = forest.place;
  for (int tree = 0; tree < forest.trees; tree += kTogether, index += kTogether) {
    // Two questions of each tree at a time.
    __m512i indices = _mm512_setzero_si512();
    __m512i bits = _mm512_inserti64x4(_mm512_set1_epi8(1), _mm256_set1_epi8(2), 1);
    int bit = 0;
    for (; bit + 1 < forest.depth; bit += 2, feature += 2 * kTogether, least += 2 * kTogether) {
      const __m512i place = _mm512_permutexvar_epi8(_mm512_loadu_si512(feature), table);
      const __mmask64 above = _mm512_cmpgt_epi8_mask(place, _mm512_loadu_si512(least));
      indices = _mm512_mask_add_epi8(indices, above, indices, bits);
      bits = _mm512_slli_epi16(bits, 2);
    }
    __m256i both = _mm256_or_si256(_mm512_castsi512_si256(indices), _mm512_extracti64x4_epi64(indices, 1));
    if (bit < forest.depth) {
      const __m512i at = _mm512_castsi256_si512(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(feature)));
      const __m256i place = _mm512_castsi512_si256(_mm512_permutexvar_epi8(at, table));
      const __mmask32 above =
          _mm256_cmpgt_epi8_mask(place, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(least)));
      both = _mm256_mask_add_epi8(both, above, both, _mm512_castsi512_si256(bits));
      feature += kTogether;
      least += kTogether;
    }
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(index), both);
  }
}

void index_trees(const Forest& forest, const float* features, uint8_t* index) {
  (has_vbmi ? vbmi_index_trees : has_avx2 ? avx2_index_trees : plain_index_trees)(forest, features, index);
}

#else

void index_trees(const Forest& forest, const float* features, uint8_t* index) {
  plain_index_trees(forest, features, index);
}

#endif

#ifdef __x86_64__

/// The sums of the leaves of `trees` trees with kQuestions questions about a kernel's own features, in 16 bits: `sums`
/// has those of rows 0 to 15 and of rows 16 to 31. `first_asked` and `first_leaf` are moved on to the next trees.
template <int kQuestions>
[[gnu::target("avx2")]] void sum_leaves(int trees, size_t leaves, const __m256i* answers, const uint8_t* index,
                                        const uint16_t** first_asked, const signed char** first_leaf, __m256i* sums) {
  constexpr int kChunks = kQuestions > 4 ? 1 << (kQuestions - 4) : 1;  // of 16 leaves, which one shuffle looks up
  const __m256i beyond = _mm256_set1_epi8(0x70), chunk = _mm256_set1_epi8(16);
  const uint16_t* asked = *first_asked;
  const signed char* leaf = *first_leaf;
  __m256i low = _mm256_setzero_si256(), high = low;
  for (int tree = 0; tree < trees; ++tree) {
    __m256i at = _mm256_setzero_si256();
#pragma GCC unroll 7
    for (int i = 0; i < kQuestions; ++i) {
      const __m256i bit = _mm256_set1_epi8(static_cast<char>(1 << i));
      at = _mm256_or_si256(at, _mm256_and_si256(answers[asked[i]], bit));
    }
    const signed char* table = leaf + index[tree];
    __m256i value = _mm256_setzero_si256();
#pragma GCC unroll 8
    for (int i = 0; i < kChunks; ++i, table += 16) {
      // A shuffle gives 0 where the index has its highest bit, as indices outside of the chunk then have.
      const __m256i leaves_here = _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(table)));
      value = _mm256_or_si256(value, _mm256_shuffle_epi8(leaves_here, _mm256_adds_epu8(at, beyond)));
      at = _mm256_sub_epi8(at, chunk);
    }
    low = _mm256_add_epi16(low, _mm256_cvtepi8_epi16(_mm256_castsi256_si128(value)));
    high = _mm256_add_epi16(high, _mm256_cvtepi8_epi16(_mm256_extracti128_si256(value, 1)));
    asked += kQuestions;
    leaf += leaves;
  }
  *first_asked = asked;
  *first_leaf = leaf;
  sums[0] = low;
  sums[1] = high;
}

/// The same, where one permutation looks up all leaves that are left of a tree.
template <int kQuestions>
[[gnu::target("avx512f,avx512bw,avx512vl,avx512vbmi")]] void vbmi_sum_leaves(
    int trees, size_t leaves, const __m256i* answers, const uint8_t* index, const uint16_t** first_asked,
    const signed char** first_leaf, __m256i* sums) {
  constexpr int kOrAnd = 0xf8;  // a | (b & c)
  const uint16_t* asked = *first_asked;
  const signed char* leaf = *first_leaf;
  __m512i sum = _mm512_setzero_si512();
  for (int tree = 0; tree < trees; ++tree) {
    __m256i at = _mm256_setzero_si256();
#pragma GCC unroll 7
    for (int i = 0; i < kQuestions; ++i) {
      const __m256i bit = _mm256_set1_epi8(static_cast<char>(1 << i));
      at = _mm256_ternarylogic_epi32(at, answers[asked[i]], bit, kOrAnd);
    }
    const signed char* const table = leaf + index[tree];
    __m256i value;
    if constexpr (kQuestions <= 4) {
      const __m128i first = _mm_loadu_si128(reinterpret_cast<const __m128i*>(table));
      value = _mm256_permutexvar_epi8(at, _mm256_castsi128_si256(first));
    } else if constexpr (kQuestions == 5) {
      value = _mm256_permutexvar_epi8(at, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(table)));
    } else {
      const __m512i wide = _mm512_castsi256_si512(at), first = _mm512_loadu_si512(table);
      if constexpr (kQuestions == 6) {
        value = _mm512_castsi512_si256(_mm512_permutexvar_epi8(wide, first));
      } else {
        value = _mm512_castsi512_si256(_mm512_permutex2var_epi8(first, wide, _mm512_loadu_si512(table + 64)));
      }
    }
    sum = _mm512_add_epi16(sum, _mm512_cvtepi8_epi16(value));
    asked += kQuestions;
    leaf += leaves;
  }
  *first_asked = asked;
  *first_leaf = leaf;
  _mm512_storeu_si512(sums, sum);
}

using SumLeaves = decltype(&sum_leaves<0>);
constexpr SumLeaves kSumLeaves[kMostDepth + 1] = {sum_leaves<0>, sum_leaves<1>, sum_leaves<2>, sum_leaves<3>,
                                                  sum_leaves<4>, sum_leaves<5>, sum_leaves<6>, sum_leaves<7>};
constexpr SumLeaves kVbmiSumLeaves[kMostDepth + 1] = {vbmi_sum_leaves<0>, vbmi_sum_leaves<1>, vbmi_sum_leaves<2>,
                                                      vbmi_sum_leaves<3>, vbmi_sum_leaves<4>, vbmi_sum_leaves<5>,
                                                      vbmi_sum_leaves<6>, vbmi_sum_leaves<7>};

/// Asks the questions about a kernel's own features of all rows at once. The answers are bytes: all ones or 0.
[[gnu::target("avx2,popcnt")]] void ask_rows(const Forest& forest, const Rows& rows, int count, __m256i* answers) {
  alignas(32) int8_t places[kRows] = {};
  const __m256i one = _mm256_set1_epi8(1);
  const uint16_t* first = forest.first + forest.shared;
  for (int f = 0; f < kOwnFeatures; ++f, ++first) {
    const float* const at = rows.feature[f];
    const int borders = first[1] - first[0];
    if (borders == kLanes) {  // few: the rows are compared with one border after the other
      __m256 features[4];     // Packing works on halves of vectors. In this order it leaves the rows in theirs.
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) features[i] = _mm256_loadu2_m128(at + 16 + 4 * i, at + 4 * i);
      const float* border = forest.border + first[0];
      for (__m256i* answer = answers; *border < kInfinite; ++border, ++answer) {
        const __m256 least = _mm256_broadcast_ss(border);
        __m256i is_above[4];
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) is_above[i] = _mm256_castps_si256(_mm256_cmp_ps(features[i], least, _CMP_GT_OQ));
        *answer = _mm256_packs_epi16(_mm256_packs_epi32(is_above[0], is_above[1]),
                                     _mm256_packs_epi32(is_above[2], is_above[3]));
      }
    } else {
      for (int row = 0; row < count; ++row) places[row] = place_of(forest, forest.shared + f, at[row]);
      const __m256i place = _mm256_load_si256(reinterpret_cast<const __m256i*>(places));
      __m256i least = _mm256_setzero_si256();
      for (int q = 0; q < borders; ++q) {
        answers[q] = _mm256_cmpgt_epi8(place, least);
        least = _mm256_add_epi8(least, one);
      }
    }
    answers += borders;
  }
}

/// plain_factors(), in a tenth of the time.
[[gnu::target("avx2")]] void avx2_factors(const Forest& forest, const float* shared, const Rows& rows, int count,
                                          double* out) {
  constexpr int kMostAtOnce = 256;  // trees whose leaves, of at most 127 each, have a sum of 16 bits
  uint8_t index[kMostTrees];
  __m256i answers[kMostOwnQuestions];
  index_trees(forest, shared, index);
  ask_rows(forest, rows, count, answers);
  int sums[kRows] = {};
  const signed char* leaf = forest.leaf;
  const uint16_t* asked = forest.own_asked;
  const uint8_t* at = index;
  for (const Forest::Run& run : runs_of(forest)) {
    for (int tree = 0; tree < run.trees; tree += kMostAtOnce) {
      const int trees = std::min(run.trees - tree, kMostAtOnce);
      alignas(32) int16_t of_run[kRows];
      (has_vbmi ? kVbmiSumLeaves : kSumLeaves)[run.questions](trees, size_t{1} << forest.depth, answers, at, &asked,
                                                              &leaf, reinterpret_cast<__m256i*>(of_run));
      for (int row = 0; row < kRows; ++row) sums[row] += of_run[row] * (1 << run.shift);
      at += trees;
    }
  }
  for (int row = 0; row < count; ++row) out[row] = result_of(forest, sums[row]);
}

#endif

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
    case Family::kInt8: return 12;
    case Family::kSm90SplitSkinny: return 13;
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
  const double steps = static_cast<double>(ceil_div(p.k, v.tile.bk)) / v.cut.slices;
  const float predicted = log2f_of(predicted_us);
  const float features[kKernelFeatures - kShapeFeatures] = {
      predicted,
      out[5] - predicted,
      static_cast<float>(w.part),
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
  uint8_t index[kMostTrees];
  index_trees(forest, features, index);
  int sum = 0;
  const signed char* leaf = forest.leaf;
  const uint8_t* at = index;
  for (const Forest::Run& run : runs_of(forest)) {
    int of_run = 0;
#pragma GCC unroll 8
    for (int tree = 0; tree < run.trees; ++tree, leaf += size_t{1} << forest.depth) of_run += leaf[*at++];
    sum += of_run * (1 << run.shift);
  }
  return result_of(forest, sum);
}

void plain_factors(const Forest& forest, const float* shared, const Rows& rows, int count, double* out) {
  uint8_t index[kMostTrees], answers[kMostOwnQuestions];
  plain_index_trees(forest, shared, index);
  for (int row = 0; row < count; ++row) {
    for (int f = 0; f < kOwnFeatures; ++f) {
      const float feature = rows.feature[f][row];
      const int at = forest.shared + f;
      for (int q = forest.first[at]; q < forest.first[at + 1]; ++q) {
        answers[q - forest.first[forest.shared]] = feature > forest.border[q];
      }
    }
    int sum = 0;
    const signed char* leaf = forest.leaf;
    const uint16_t* asked = forest.own_asked;
    const uint8_t* at = index;
    for (const Forest::Run& run : runs_of(forest)) {
      int of_run = 0;
      for (int tree = 0; tree < run.trees; ++tree, leaf += size_t{1} << forest.depth) {
        unsigned full = *at++;
        for (int i = 0; i < run.questions; ++i) full |= static_cast<unsigned>(answers[*asked++]) << i;
        of_run += leaf[full];
      }
      sum += of_run * (1 << run.shift);
    }
    out[row] = result_of(forest, sum);
  }
}

#ifdef __x86_64__

void factors(const Forest& forest, const float* shared, const Rows& rows, int count, double* out) {
  (has_avx2 ? avx2_factors : plain_factors)(forest, shared, rows, count, out);
}

#else

void factors(const Forest& forest, const float* shared, const Rows& rows, int count, double* out) {
  plain_factors(forest, shared, rows, count, out);
}

#endif

const Learned* learned(const DeviceFacts& facts, DType dtype) {
  if (dtype != DType::kF16 && dtype != DType::kBF16) return nullptr;
  const Learned* nearest = nullptr;
  double least = 0;
  for (const ChipModel& model : kModels) {
    if (model.cc != facts.cc) continue;
    const double ratio = dram_gbs(facts) / dram_gbs({.cc = model.cc, .dram_gbs = model.dram_gbs});
    const double distance = std::max(ratio, 1 / ratio);
    if (nearest == nullptr || distance < least) nearest = model.learned, least = distance;
  }
  return nearest;
}

double learned_reach(double best_us) {
  return best_us < 100 ? 2.2 : best_us < 400 ? 1.6 : 1.3;
}

}  // namespace hgemm
