// What the analytic models (Variant::predict_us, torch_product_us) miss, learned from thousands of random shapes that
// benchmarks/fit_model.py has measured: a factor for each kernel of ours, one for torch beside the best of them, and
// how far their ratio tends to be off.
#pragma once

#include "core/problem.h"

namespace hgemm {

/// Trees that all ask `depth` questions, the same ones at each level, whether a feature is above one of its borders:
/// `feature` and `border` hold depth entries a tree, which number the rows and columns of `borders`. `leaf` holds
/// 2^depth, in units of `unit` times two to the tree's `shift`: late trees have small leaves. The sum over all trees,
/// and `bias`, is a power of two.
constexpr int kBorders = 129, kMostDepth = 8;
struct Forest {
  int trees, depth;
  double bias, unit;
  const unsigned char *feature, *border;
  const float (*borders)[kBorders];
  const signed char* leaf;
  const unsigned char* shift;
};

/// Asked of a forest in this order: what the product is, then what this kernel, or torch, would make of it.
constexpr int kShapeFeatures = 20;
constexpr int kKernelFeatures = kShapeFeatures + 25;
constexpr int kTorchFeatures = kShapeFeatures + 39;
constexpr int kDoubtFeatures = kTorchFeatures + 1;  // and log2 of torch's learned time over ours

/// `product` has no epilogue, and `alignments` are its own. `predicted_us` is the analytic model's; of torch, `best_us`
/// the least learned time of ours.
void shape_features(const Problem& product, const Alignments& alignments, float* out);
void kernel_features(const Variant& v, const Problem& product, const DeviceFacts& facts, double predicted_us,
                     float* out);
void torch_features(const Problem& product, const DeviceFacts& facts, double predicted_us, double best_us, float* out);

/// The number that stands for a family among the features of a kernel. The trees were fitted to these numbers, so none
/// may change: a new family takes the next one that is free, and 4, which no family has any more, is not used again.
int learned_code(Family family);

/// Answers to the questions of at most kRows kernels, which then go through the trees together: a question at a time to
/// all of them is one vector instruction or a few.
constexpr int kRows = 16;
constexpr int kLanes = 4;
using Floats = float __attribute__((vector_size(kLanes * sizeof(float))));
union Rows {
  Floats answers[kKernelFeatures][kRows / kLanes];
  float answer[kKernelFeatures][kRows];
};

/// By how much a forest multiplies a prediction; of `count` rows.
double factor(const Forest& forest, const float* features);
void factors(const Forest& forest, const Rows& rows, int count, double* out);

/// Forests of a chip; null where nobody measured it.
struct Learned {
  Forest kernels, torch, doubt;
};
const Learned* learned(const DeviceFacts& facts, DType dtype);

/// Kernels that the analytic model expects to be slower than the best by more than this were not measured.
double learned_reach(double best_us);

}  // namespace hgemm
