// The learned cost model: corrections of the analytic models (Variant::predict_us, torch_product_us), fitted by
// benchmarks/fit_model.py to measured times of thousands of random shapes. It predicts three numbers: a factor for the
// time of each kernel, a factor for torch's time, and how far the ratio of torch's time to the best kernel's tends to
// be off.
#pragma once

#include <cstdint>

#include "core/problem.h"

namespace hgemm {

/// A sum of oblivious decision trees: all nodes of one level of a tree ask the same question, whether a feature is
/// above a border. The answers are the bits of an index into the tree's leaves. The sum of one leaf of each tree, plus
/// `bias`, is the log2 of the result.
///
/// A forest corrects the times of several kernels for one shape. So the features fall in two: those that all kernels
/// share, which come first, and those of one kernel. Questions about shared features are the high bits of an index, and
/// are asked once.
///
/// The arrays start on cache lines, as vectors of a whole line are read from them.
struct Forest {
  /// Consecutive trees with the same number of questions about a kernel's own features. The leaves of these trees are
  /// in units of `unit` times two to the power of `shift`: late trees have small leaves.
  struct Run {
    uint16_t trees;
    uint8_t questions, shift;
  };

  int trees, depth;
  double bias, unit;
  int run_count;
  const Run* runs;

  /// The number of shared features, which come first.
  int shared;

  /// The borders of feature f, ascending, are those from first[f] to first[f + 1], where at least one infinite one
  /// fills them up to a multiple of kLanes. pivot[kPivots * f + i] is the last of the i-th kLanes of them, infinite
  /// where there are no more. The place of a feature is the number of its borders that it is above.
  const float *border, *pivot;
  const uint16_t* first;

  /// `feature` and `place` have the questions of kTogether trees about shared features, the lowest bit of their indices
  /// first: for each tree the feature, and the place that it must be above. It is never above kNever, which stands
  /// where a bit is not for a shared feature.
  const uint8_t* feature;
  const int8_t* place;

  /// The questions of each tree about a kernel's own features, the lowest bit first: the numbers of their borders,
  /// counted from first[shared].
  const uint16_t* own_asked = nullptr;

  /// 2^depth leaves for each tree. kPadding more may be read.
  const signed char* leaf;
};
constexpr int kMostTrees = 1280, kMostShared = 64, kMostOwnQuestions = 1024, kMostDepth = 7;
constexpr int kTogether = 32, kLanes = 8, kPivots = 16, kNever = 127, kPadding = 16;

/// The numbers of features, which a forest gets in this order: first those of the shape, then those of the kernel or of
/// torch.
constexpr int kShapeFeatures = 20;
constexpr int kKernelFeatures = kShapeFeatures + 25;
constexpr int kTorchFeatures = kShapeFeatures + 39;
constexpr int kDoubtFeatures = kTorchFeatures + 1;  // the last: log2 of torch's corrected time over our best

/// Writes the features of a shape to the first kShapeFeatures elements of `out`. `product` has no epilogue, and
/// `alignments` are its own.
void shape_features(const Problem& product, const Alignments& alignments, float* out);

/// Appends the features of torch to those of the shape, which `out` has. `predicted_us` is the analytic prediction for
/// torch, and `best_us` the least corrected prediction for a kernel that computes what torch does. So the prediction
/// for torch does not depend on whether float32 may be split.
void torch_features(const Problem& product, const DeviceFacts& facts, double predicted_us, double best_us, float* out);

/// The number that encodes a family among a kernel's features. The trees were fitted to these numbers, so that none may
/// change. A new family takes the next free number. No family has the number 4 any more, and it is not used again.
int learned_code(Family family);

/// The kinds of products that have forests of their own: of one 16-bit matrix by another, of batches of 16-bit
/// matrices, of float32 matrices, and of float64 matrices, batches or not. Vectors in float32 and float64 have none.
enum class ForestKind { kNone, kHalf, kHalfBatches, kFloat32, kFloat64 };
ForestKind forest_kind(const Problem& product);

/// Whether the forests of a kind were fitted to times of this family (Learned::families). The kernels of families that
/// came later keep their analytic predictions until the trees are fitted again.
bool is_learned(Family family, ForestKind kind);

/// The own features of at most kRows kernels, which go through the trees together.
constexpr int kRows = 32, kOwnFeatures = kKernelFeatures - kShapeFeatures;
struct Rows {
  alignas(64) float feature[kOwnFeatures][kRows];
};

/// Writes the own features of `count` kernels. `predicted_us` has their analytic predictions, and `shared` the features
/// of the shape. Elements of rows beyond `count` have no meaning.
void kernel_features(const Variant* const* kernels, const double* predicted_us, int count, const Problem& product,
                     const DeviceFacts& facts, const float* shared, Rows* rows);

/// The factor by which a forest whose features are all shared corrects the prediction with these features.
double factor(const Forest& forest, const float* features);

/// The factors for the first `count` kernels of `rows`, of a shape with these shared features.
void factors(const Forest& forest, const float* shared, const Rows& rows, int count, double* out);

/// Vector instructions that a CPU may have, each with those before it: AVX2, which Haswell and Zen brought, and VBMI of
/// AVX-512, which Ice Lake and Zen 4 brought. `kVectors` are those of this CPU.
enum class Vectors { kNone, kAvx2, kVbmi };
extern const Vectors kVectors;

/// factors(), by the instructions of `vectors`, which the CPU must have. The results are the same, bit for bit.
void factors_by(Vectors vectors, const Forest& forest, const float* shared, const Rows& rows, int count, double* out);

/// Writes the logarithms of positive numbers as features have them. `count` must be a multiple of kLogs. Without VBMI
/// they are those of std::log2, rounded to float. With it they may be the next float.
constexpr int kLogs = 8;
void log2_by(Vectors vectors, const double* x, int count, float* out);

/// The forests of a chip, and the power of what `doubt` says that the margin over torch has (dispatch/estimates.cc).
/// `planes` corrects kernels that split float32, and has no trees where none was timed. `families` has a bit
/// 1 << learned_code() for each family whose kernels were timed.
struct Learned {
  Forest kernels, torch, doubt, planes = {};
  double doubted;
  uint32_t families = 0;
};

/// The forests for a device and a kind of product. For ForestKind::kHalf they are, of the chips with the device's
/// compute capability, those of the chip whose memory is nearest in bandwidth. For the other kinds all of these chips
/// have the same forests; for kFloat64 only those whose float64 is not slow. Null if there are no forests of the kind.
const Learned* learned(const DeviceFacts& facts, ForestKind kind);

/// A kernel was only measured for the model if its analytic prediction was at most this times the best prediction,
/// `best_us`.
double learned_reach(double best_us);

}  // namespace hgemm
