// The learned cost model: corrections of the analytic models (Variant::predict_us, torch_product_us), fitted by
// benchmarks/fit_model.py to measured times of thousands of random shapes. It predicts three numbers: a factor for the
// time of each kernel, a factor for torch's time, and how far the ratio of torch's time to the best kernel's tends to
// be off.
#pragma once

#include "core/problem.h"

namespace hgemm {

/// A sum of oblivious decision trees: all nodes of one level of a tree ask the same question, whether a feature is
/// above one of its borders. Every tree has `depth` levels. `feature` and `border` have one entry for each level of
/// each tree: the row and the column of `borders`. `leaf` has 2^depth entries for each tree, in units of `unit` times
/// two to the power of the tree's `shift` (late trees have small leaves). The sum over all trees, plus `bias`, is the
/// log2 of the result.
constexpr int kBorders = 129, kMostDepth = 8;
struct Forest {
  int trees, depth;
  double bias, unit;
  const unsigned char *feature, *border;
  const float (*borders)[kBorders];
  const signed char* leaf;
  const unsigned char* shift;
};

/// The numbers of features, which a forest gets in this order: first those of the shape, then those of the kernel or of
/// torch.
constexpr int kShapeFeatures = 20;
constexpr int kKernelFeatures = kShapeFeatures + 25;
constexpr int kTorchFeatures = kShapeFeatures + 39;
constexpr int kDoubtFeatures = kTorchFeatures + 1;  // the last: log2 of torch's corrected time over our best

/// Writes the features of a shape to the first kShapeFeatures elements of `out`. `product` has no epilogue, and
/// `alignments` are its own.
void shape_features(const Problem& product, const Alignments& alignments, float* out);

/// Appends the features of a kernel to those of the shape, which `out` has. `predicted_us` is the analytic prediction.
void kernel_features(const Variant& v, const Problem& product, const DeviceFacts& facts, double predicted_us,
                     float* out);

/// Appends the features of torch to those of the shape, which `out` has. `predicted_us` is the analytic prediction for
/// torch, and `best_us` the least corrected prediction for a kernel.
void torch_features(const Problem& product, const DeviceFacts& facts, double predicted_us, double best_us, float* out);

/// The number that encodes a family among a kernel's features. The trees were fitted to these numbers, so that none may
/// change. A new family takes the next free number. No family has the number 4 any more, and it is not used again.
int learned_code(Family family);

/// The highest code that the trees were fitted to. A family with a higher code came later: its kernels keep their
/// analytic predictions until the trees are fitted again.
constexpr int kLastLearnedCode = 10;

/// The features of at most kRows kernels, which go through the trees together: each question is asked of all of them at
/// once, with one or a few vector instructions.
constexpr int kRows = 16;
constexpr int kLanes = 4;
using Floats = float __attribute__((vector_size(kLanes * sizeof(float))));
union Rows {
  Floats answers[kKernelFeatures][kRows / kLanes];
  float answer[kKernelFeatures][kRows];
};

/// The factor by which a forest corrects the prediction with these features.
double factor(const Forest& forest, const float* features);

/// The factors for the first `count` kernels of `rows`.
void factors(const Forest& forest, const Rows& rows, int count, double* out);

/// The forests of a chip.
struct Learned {
  Forest kernels, torch, doubt;
};

/// The forests for a device and dtype; null where none were fitted.
const Learned* learned(const DeviceFacts& facts, DType dtype);

/// A kernel was only measured for the model if its analytic prediction was at most this times the best prediction,
/// `best_us`.
double learned_reach(double best_us);

}  // namespace hgemm
