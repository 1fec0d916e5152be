// Plain data shared by every room: what is to be multiplied, on what device, by which kernel.
// No torch, no CUDA: the dispatcher compiles and runs on a machine without a GPU.
#pragma once

#include <cstddef>
#include <cstdint>

namespace hgemm {

// No kernel takes what follows kF32: these are torch's, and reported by their names.
enum class DType : int32_t { kF16 = 0, kBF16 = 1, kF32 = 2, kF64 = 3, kC64 = 4, kC128 = 5 };
enum class Activation : int32_t { kNone = 0, kRelu = 1, kGelu = 2, kGeluTanh = 3, kSilu = 4 };

constexpr int dtype_bytes(DType t) {
  constexpr int kBytes[] = {2, 2, 4, 8, 8, 16};
  return kBytes[static_cast<int>(t)];
}
constexpr const char* dtype_name(DType t) {
  constexpr const char* kNames[] = {"float16", "bfloat16", "float32", "float64", "complex64", "complex128"};
  return kNames[static_cast<int>(t)];
}

/// A batch of matrices. Strides count elements; 0 broadcasts. Two batch dimensions {outer, inner} serve
/// (B, H, S, D) views whose heads do not collapse into one stride.
struct Matrix {
  void* data = nullptr;
  int64_t row_stride = 0;
  int64_t col_stride = 0;
  int64_t batch_stride[2] = {0, 0};
};

/// Memory order of an operand: the reduction index k or the outer index (m for A, n for B) is contiguous.
enum class Major : int32_t { kK = 0, kMN = 1 };

/// What may decide how a product is summed up. kBatchInvariant: not the number of A's rows, not the batch, not where a
/// row stands or how it is aligned; where no kernel takes the dtype it is torch's, or, kBatchInvariantOrRaise, an
/// error.
enum class NumericsMode : int32_t { kFast = 0, kBatchInvariant = 1, kBatchInvariantOrRaise = 2 };

/// What may compute a float32 product. kSplit: also kernels of Arithmetic::kSplitF32. kTf32: torch alone, which may use
/// TF32, or for all that is known here may.
enum class Float32Mode : int32_t { kStrict = 0, kSplit = 1, kTf32 = 2 };

/// D = act(alpha * A @ B + beta * C + bias), A (m, k), B (k, n), C and D (m, n), bias (n).
/// Invariants (see dispatch/canonical.h): A and B each have one unit stride; D has unit column stride; C is any-strided
/// and may broadcast. `pre_activation`, when set, receives the argument of act with D's strides.
struct Problem {
  int64_t m = 0, n = 0, k = 0;
  int64_t batch[2] = {1, 1};  // outer, inner
  Matrix a, b, c, d;          // c.data == nullptr: no C
  const void* bias = nullptr;
  void* pre_activation = nullptr;
  float alpha = 1.0f, beta = 0.0f;
  DType dtype = DType::kF16;      // of A and B (and bias)
  DType out_dtype = DType::kF16;  // of D and pre_activation: dtype, or kF32
  DType c_dtype = DType::kF16;    // of C
  Activation act = Activation::kNone;
  int32_t b_tile = 0;  // of a padded copy (tile/pad.h): not 0 where tiles of B start on lines of their own
  // B's columns are two halves: D = act(A @ first) * (A @ second), (m, n / 2). Only where Variant::gates says so.
  bool gated = false;
  bool b_is_vector = false;  // its only column: so D is that row times A's transpose as well
  NumericsMode numerics = NumericsMode::kFast;
  Float32Mode float32 = Float32Mode::kStrict;  // of other dtypes always that

  constexpr bool is_half() const { return dtype == DType::kF16 || dtype == DType::kBF16; }
  constexpr bool empty() const { return m == 0 || n == 0 || k == 0 || batches() == 0; }
  constexpr int64_t batches() const { return batch[0] * batch[1]; }
  constexpr double flops() const { return 2.0 * static_cast<double>(m) * n * k * batches(); }
  constexpr Major a_major() const { return a.col_stride == 1 ? Major::kK : Major::kMN; }
  constexpr Major b_major() const { return b.row_stride == 1 ? Major::kK : Major::kMN; }
  constexpr int64_t lda() const { return a_major() == Major::kK ? a.row_stride : a.col_stride; }
  constexpr int64_t ldb() const { return b_major() == Major::kK ? b.col_stride : b.row_stride; }
};

/// Largest power of two (at most 16) that divides the address and every stride of the matrix, in bytes: the widest copy
/// that is legal at the start of every row. `ld` is the non-unit stride; strides over an extent of one do not count. A
/// null address stands for memory that is still to be allocated, and is aligned.
int alignment_of(const Matrix& x, DType dtype, int64_t ld, int64_t batch_outer, int64_t batch_inner);
inline int alignment_a(const Problem& p) {
  return alignment_of(p.a, p.dtype, p.lda(), p.batch[0], p.batch[1]);
}
inline int alignment_b(const Problem& p) {
  return alignment_of(p.b, p.dtype, p.ldb(), p.batch[0], p.batch[1]);
}
inline int alignment_d(const Problem& p) {
  return alignment_of(p.d, p.out_dtype, p.d.row_stride, p.batch[0], p.batch[1]);
}

/// The alignments of A, B and D, for code that asks for them more than once.
struct Alignments {
  int a = 16, b = 16, d = 16;

  constexpr int least() const { return a < b ? (a < d ? a : d) : (b < d ? b : d); }
  /// Whether every row of A, B and D starts on 16 bytes. Where one does not, cuBLAS leaves its fast kernels.
  constexpr bool all_whole() const { return least() >= 16; }
};
inline Alignments alignments_of(const Problem& p) {
  return {alignment_a(p), alignment_b(p), alignment_d(p)};
}

/// "NT", "NN", "TN", "TT": whether A and B are stored transposed (row-major A is N; a row-major weight (n, k) is T).
const char* layout_name(const Problem& problem);

/// The product without its epilogue (activation, bias, C): what tables hold and models of time are fitted to.
Problem without_epilogue(const Problem& problem);

/// What the dispatcher knows of a device; constants of a known chip, or read once through cudaDeviceGetAttribute.
struct DeviceFacts {
  int cc = 0;  // 10 * major + minor: 80, 86, 89, 90, 100
  int sm_count = 0;
  int smem_optin = 0;   // bytes of shared memory one block may use
  int smem_per_sm = 0;  // bytes
  int64_t l2_bytes = 0;
  int64_t dram_gbs = 0;  // at most, by its memory's clock and width; 0: not known
};

/// Why a variant cannot serve a problem. Formatting is skipped when nobody asks.
struct Reason {
  char text[192] = {0};
};

/// Kernels with one main loop. Nothing depends on the values: the learned model of time has codes of its own
/// (dispatch/models/learned.h).
enum class Family : int32_t {
  kAdded,  // of a library that adds its kernels (dispatch/registry.h): they only run when they are asked for
  kSm80Mma,
  kSm80Split,
  kSm90Wgmma,
  kSm90Split,
  kSm90Skinny,
  kSkinny,
  kGemv,
  kBatchedMma,
  kSimtSkinny,
  kSimtGemv,
};
// kSplitF32: float32 as bfloat16 planes on tensor cores, only where Problem::float32 asks for it.
enum class Arithmetic : int32_t { kAccumulateF32 = 0, kAccumulateF16 = 1, kSplitF32 = 2 };

/// The class of a kernel's sums. Kernels of one class, but for kVaries, give the same bits for every element of alpha *
/// A @ B + beta * C + bias, whatever else is in A and wherever it lies (tests/kernels/test_gpu_invariance.py).
enum class Sums : int32_t {
  kVaries = 0,      // M, the batch, the alignment or the device has a say in their order; or nobody has looked
  kInOrder = 1,     // one float32 sum on tensor cores, 16 k at a time in K's order
  kTwoSlices = 2,   // one such sum for each half of K's tiles of 64, added
  kFourSlices = 3,  // for each quarter, added in an order that the column decides
  kPlanes = 4,      // float32 out of bfloat16 planes, by wgmma: 64 k at a time in K's order (tile/split_planes.h)
  kPlanesMma = 5,   // the same by mma.sync, which adds the small products in another order
};

// cudaStream_t and cudaError_t without the CUDA headers.
using Stream = void*;
using Status = int;

/// Declares a function that a .cu file defines. A build without device code (HGEMM_CUDA_ARCHS=none) compiles none of
/// those: decisions and explanations are the same there, and each of these functions says that it is not built.
#ifdef HGEMM_NO_DEVICE_CODE
constexpr Status kNotBuilt = 209;  // cudaErrorNoKernelImageForDevice
#define HGEMM_IN_CUDA(...)    \
  inline Status __VA_ARGS__ { \
    return kNotBuilt;         \
  }
#else
#define HGEMM_IN_CUDA(...) Status __VA_ARGS__;
#endif

struct Tile {
  int bm, bn, bk, stages, threads;
};

/// How a kernel shares a product out, beyond its tile: what a model of its time has to know.
struct Cut {
  int cluster_m = 1, cluster_n = 1;  // tiles of a cluster, side by side
  int slices = 1;                    // of K, each a block of the cluster
  bool pingpong = false;             // one tile's epilogue runs beside the next one's main loop
  bool pads = false;                 // operands are copied first
  bool swaps = false;                // computes D's transpose: the tile's rows are D's columns
  bool edges = false;                // the last columns have smaller tiles
  bool shares_k = false;             // blocks share tiles: stream-K, or split-K through memory
};

/// One kernel as data. A variant is declared once, by one line in its family's list; everything else iterates.
struct Variant {
  const char* name;
  Family family;
  Arithmetic arithmetic;
  int min_cc;  // runs on min_cc <= cc <= max_cc
  int max_cc;
  uint32_t dtypes;  // bit 1 << DType
  Tile tile;
  int smem_bytes;
  bool splits_k;
  /// The one validity predicate beyond architecture, dtype and shared memory. `why` may be null.
  bool (*eligible)(const Problem&, const DeviceFacts&, Reason* why);
  /// Bytes of scratch the launch needs for this problem; 0 for none.
  size_t (*workspace)(const Problem&, const DeviceFacts&);
  /// Predicted device time in microseconds.
  double (*predict_us)(const Problem&, const DeviceFacts&);
  /// Enqueues on `stream`; returns a cudaError_t. Never synchronises, never allocates.
  Status (*launch)(const Problem&, const DeviceFacts&, void* workspace, Stream stream);
  /// Whether `launch` takes this problem, which is eligible, `gated` as well. Null: never.
  bool (*gates)(const Problem&) = nullptr;
  Cut cut = {};
  Sums sums = Sums::kVaries;      // of problems whose `numerics` is not kFast
  bool fast_activations = false;  // approximates those beyond relu (tile/fast_activation.cuh)
};

/// Variant ids index variants(); these two stand beside them wherever an id is accepted.
constexpr int kAuto = -1;   // let the dispatcher choose
constexpr int kTorch = -2;  // torch's own kernel (cuBLAS)

}  // namespace hgemm
