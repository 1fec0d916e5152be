// Plain data that every directory of this library shares: the GEMM to compute (Problem), the device that runs it
// (DeviceFacts), and a kernel that may run it (Variant).
//
// This header includes neither torch nor CUDA, so the dispatcher compiles, and is tested, on a machine without a GPU.
#pragma once

#include <cstddef>
#include <cstdint>

namespace hgemm {

/// The element type of a matrix. Kernels take kF16, kBF16 and kF32, some of them kF64 (sm90_dmma, tiny_batch) and kC64
/// (tiny_batch, sm90_split), and others kI8 with a result of kI32. Torch runs all matmuls of the other types; they are
/// listed so that explanations and reports can name them.
enum class DType : int32_t { kF16 = 0, kBF16 = 1, kF32 = 2, kF64 = 3, kC64 = 4, kC128 = 5, kI8 = 6, kI32 = 7 };

/// The activation of the epilogue, by torch's names: relu, gelu (by erf), gelu with approximate="tanh", silu.
enum class Activation : int32_t { kNone = 0, kRelu = 1, kGelu = 2, kGeluTanh = 3, kSilu = 4 };

/// Bytes of one element.
constexpr int dtype_bytes(DType t) {
  constexpr int kBytes[] = {2, 2, 4, 8, 8, 16, 1, 4};
  return kBytes[static_cast<int>(t)];
}

/// The dtype's name in torch: "float16".
constexpr const char* dtype_name(DType t) {
  constexpr const char* kNames[] = {"float16",   "bfloat16",   "float32", "float64",
                                    "complex64", "complex128", "int8",    "int32"};
  return kNames[static_cast<int>(t)];
}

/// True for float64 and the complex types, of which tables have no times.
constexpr bool is_wide(DType t) {
  return t == DType::kF64 || t == DType::kC64 || t == DType::kC128;
}

/// A batch of strided matrices in device memory. The extents are Problem's.
///
/// Element (row, col) of matrix {outer, inner} of the batch lies at
/// data[outer * batch_stride[0] + inner * batch_stride[1] + row * row_stride + col * col_stride].
/// Strides count elements, not bytes. A stride of 0 broadcasts. There are two batch dimensions because the heads of a
/// (B, H, S, D) view need not collapse into one stride.
struct Matrix {
  /// The address of the first element.
  void* data = nullptr;

  /// Elements from one row to the next.
  int64_t row_stride = 0;

  /// Elements from one column to the next.
  int64_t col_stride = 0;

  /// Elements from one matrix of the batch to the next, along the outer and the inner batch dimension.
  int64_t batch_stride[2] = {0, 0};
};

/// The memory order of A or B, by the index that is contiguous. kK (K-major): the reduction index k. kMN (MN-major):
/// the outer index, m for A and n for B.
enum class Major : int32_t { kK = 0, kMN = 1 };

/// What the summation order of a GEMM, and hence the bits of its result, may depend on.
///
/// kFast: on anything.
/// kBatchInvariant: not on M, on the batch size, on the position of a row in A or on the alignment. Torch runs the
/// matmuls of a dtype that no batch-invariant kernel takes, such as strict float32.
/// kBatchInvariantOrRaise: the same, but a matmul that torch would run is an error.
enum class NumericsMode : int32_t { kFast = 0, kBatchInvariant = 1, kBatchInvariantOrRaise = 2 };

/// Which kernels may run a float32 GEMM.
///
/// kStrict: torch's, and those that add up products of float32 elements, in float32 (Arithmetic::kAccumulateF32) or in
/// float64 (kAccumulateF64).
/// kSplit: also those that split the operands into planes of 16 bits (takes_planes).
/// kTf32: TF32 is allowed (or the caller did not say), so the GEMM is left to torch.
enum class Float32Mode : int32_t { kStrict = 0, kSplit = 1, kTf32 = 2 };

/// The most bytes of workspace that a launch may take, whatever the size of its operands. It bounds the device memory
/// that a call needs beside its operands, its result and the copies that torch makes as well. Kernels that copy their
/// operands do so in slabs of rows and columns that fit (tile/slabs.h).
constexpr int64_t kMostWorkspace = int64_t{256} << 20;

/// One (batched) GEMM and its epilogue, D = act(alpha * A @ B + beta * C + bias), with the shapes
///
///   A (m, k)    B (k, n)    C and D (m, n)    bias (n)
///
/// in each of the batch[0] * batch[1] matrices. In PyTorch: act(torch.baddbmm(C, A, B, beta=beta, alpha=alpha) + bias).
/// Kernels accumulate in float32, except those of Arithmetic::kAccumulateF16 and kAccumulateF64, and the epilogue works
/// in float32: only D is rounded to its type. For operands of kF64 both work in float64.
///
/// Invariants, which dispatch/canonical.h establishes:
///  - A and B each have a unit stride, along their rows or their columns (a_major(), b_major());
///  - D is row-major: d.col_stride is 1;
///  - C may have any strides and may broadcast;
///  - no stride is negative.
struct Problem {
  /// Rows of A and D; columns of B and D; columns of A and rows of B.
  int64_t m = 0, n = 0, k = 0;

  /// The extents of the batch dimensions, outer and inner. A single batch dimension is the inner one.
  int64_t batch[2] = {1, 1};

  /// The operands and the result. Without a C, c.data is null.
  Matrix a, b, c, d;

  /// n contiguous elements of `dtype` that are added to every row; null without a bias.
  const void* bias = nullptr;

  /// Where not null, the kernel also stores the argument of `act` here, in out_dtype and with the strides of D. The
  /// backward pass of an activation needs it.
  void* pre_activation = nullptr;

  /// Factors of A @ B and of C. With beta = 0 the kernel does not read C. They have been rounded to float32 unless
  /// `dtype` is kF64.
  double alpha = 1.0, beta = 0.0;

  /// The elements of A, or of B, are the conjugates of what memory holds. Always false unless `dtype` is kC64. A kernel
  /// that takes kC64 computes with the conjugates, or refuses the problem.
  bool conjugates_a = false, conjugates_b = false;

  /// The element type of A, B and bias.
  DType dtype = DType::kF16;

  /// The element type of D and pre_activation: `dtype`, or kF32.
  DType out_dtype = DType::kF16;

  /// The element type of C.
  DType c_dtype = DType::kF16;

  /// The function that the epilogue applies last, elementwise.
  Activation act = Activation::kNone;

  /// 0, unless B is a padded copy (tile/pad.h) in which every tile of this many columns starts on a 128-byte line.
  int32_t b_tile = 0;

  /// B holds two matrices of n / 2 columns side by side, and D, (m, n / 2), is act(A @ first) * (A @ second). Only
  /// kernels whose Variant::gates returns true for the problem compute this.
  bool gated = false;

  /// The caller's B was a vector, which is the only column here (n is 1). The same D is that vector, as a row, times
  /// the transpose of A; kernels whose bits depend on which operand is A compute it in that form (tile/split_planes.h).
  bool b_is_vector = false;

  /// B is A's transpose, in the same memory: x @ x.T. The kernels that add up elements (i, j) and (j, i) of such a
  /// product in different orders refuse it, so that it is symmetric to the bit.
  bool b_is_a_transposed = false;

  /// The caller's inner batch dimension and its rows are exchanged here: they are the rows and batch[1]. B does not
  /// vary along either. Torch would compute batch[1] rows in each of m matrices.
  bool rows_are_batch = false;

  /// This is the real form of a complex problem (real_form()).
  bool is_real_form = false;

  /// What the caller requires of the summation order.
  NumericsMode numerics = NumericsMode::kFast;

  /// The summation order that `numerics` requires is that of slices of K (core/slices.h), on a chip with kernels of its
  /// own. ask_for() in dispatch/invariance.h sets it. A part of the problem, such as a slab, keeps it.
  bool in_slices = false;

  /// Which kernels the caller allows: one of the three for float32, kStrict or kSplit for complex64, kStrict for other
  /// dtypes.
  Float32Mode float32 = Float32Mode::kStrict;

  /// The most bytes that Variant::workspace may return. It is less than kMostWorkspace where so much memory was not to
  /// be had (without_workspace in dispatch/plan.h).
  int64_t most_workspace = kMostWorkspace;

  /// True for the 16-bit types, float16 and bfloat16.
  constexpr bool is_half() const { return dtype == DType::kF16 || dtype == DType::kBF16; }

  /// True if there is nothing to multiply: some extent is 0. With k = 0 alone, D still has elements.
  constexpr bool empty() const { return m == 0 || n == 0 || k == 0 || batches() == 0; }

  /// The number of matrices in the batch.
  constexpr int64_t batches() const { return batch[0] * batch[1]; }

  /// Floating-point operations of A @ B over the whole batch; a multiply-add counts as two, of complex numbers too.
  constexpr double flops() const { return 2.0 * static_cast<double>(m) * n * k * batches(); }

  /// The memory orders of A and B.
  constexpr Major a_major() const { return a.col_stride == 1 ? Major::kK : Major::kMN; }
  constexpr Major b_major() const { return b.row_stride == 1 ? Major::kK : Major::kMN; }

  /// The leading dimensions of A and B: the stride, in elements, along the index that is not contiguous.
  constexpr int64_t lda() const { return a_major() == Major::kK ? a.row_stride : a.col_stride; }
  constexpr int64_t ldb() const { return b_major() == Major::kK ? b.col_stride : b.row_stride; }
};

/// The alignment of a matrix in bytes: the largest power of two, at most 16, that divides its address and all its
/// strides. An access of that width is legal at the start of every row.
///
/// `ld` is the leading dimension, in elements. `batch_outer` and `batch_inner` are the extents of the batch: the stride
/// over an extent of one does not count. A null address stands for memory that is not allocated yet; it counts as
/// aligned.
inline int alignment_of(const Matrix& x, DType dtype, int64_t ld, int64_t batch_outer, int64_t batch_inner) {
  const uint64_t bytes = static_cast<uint64_t>(dtype_bytes(dtype));
  uint64_t bits = 16 | reinterpret_cast<uintptr_t>(x.data) | static_cast<uint64_t>(ld) * bytes;
  if (batch_outer > 1) bits |= static_cast<uint64_t>(x.batch_stride[0]) * bytes;
  if (batch_inner > 1) bits |= static_cast<uint64_t>(x.batch_stride[1]) * bytes;
  return static_cast<int>(bits & (~bits + 1));
}

/// The alignments of A, B and D in bytes, each 1 to 16.
inline int alignment_a(const Problem& p) {
  return alignment_of(p.a, p.dtype, p.lda(), p.batch[0], p.batch[1]);
}
inline int alignment_b(const Problem& p) {
  return alignment_of(p.b, p.dtype, p.ldb(), p.batch[0], p.batch[1]);
}
inline int alignment_d(const Problem& p) {
  return alignment_of(p.d, p.out_dtype, p.d.row_stride, p.batch[0], p.batch[1]);
}

/// The alignments of A, B and D in bytes, for code that needs them more than once.
struct Alignments {
  int a = 16, b = 16, d = 16;

  /// The smallest of the three.
  constexpr int least() const { return a < b ? (a < d ? a : d) : (b < d ? b : d); }

  /// True if every row of A, B and D starts on a multiple of 16 bytes. Otherwise cuBLAS does not use its fast
  /// kernels.
  constexpr bool all_whole() const { return least() >= 16; }
};
inline Alignments alignments_of(const Problem& p) {
  return {alignment_a(p), alignment_b(p), alignment_d(p)};
}

/// "NT", "NN", "TN" or "TT": for A and then for B, N if the operand is row-major and T if it is stored transposed. A
/// row-major weight (n, k), as torch.nn.Linear has it, is a transposed B.
const char* layout_name(const Problem& problem);

/// A copy of the problem without its epilogue (activation, bias, C and pre_activation). Tuning tables hold the times of
/// such problems, and cost models are fitted to them.
Problem without_epilogue(const Problem& problem);

/// A complex problem as a real one, D' = alpha * A' @ B' + beta * C' with the extents m, 2n and 2k; other problems as
/// they are. Real and imaginary parts are neighbours along K in A', and along N in C' and D', as they are in memory:
///
///   A'[m, 2k + i]      is part i of A[m, k]
///   C'[m, 2n + j]      is part j of C[m, n], and the same for D' and D
///   B'[2k + i, 2n + j] is part i ^ j of B[k, n], or its negative (real_form_flips())
///
/// Strides count float32 elements for an even step: in A' and C', part j of column c lies at (c - j) * col_stride + j.
/// In B', the stride of rows and of columns is used for even steps alike. So slabs, which begin at even rows and
/// columns, are parts of the real form as they are of other problems.
Problem real_form(const Problem& problem);

/// The elements of B' that are negative: bit 2 * j + i is set for those of row 2k + i and column 2n + j. The signs of
/// both conjugations are in B', so A is read as it is.
uint32_t real_form_flips(const Problem& real_form);

/// The problem as the caller has it, and torch computes it: where `rows_are_batch`, with rows and inner batch dimension
/// exchanged back.
Problem as_called(const Problem& problem);

/// What the dispatcher knows about a device. The values come from cudaDeviceGetAttribute, which is asked once
/// (core/device.h), or from the table of known chips, for a device that is not in the machine (core/chip.h).
struct DeviceFacts {
  /// The compute capability, 10 * major + minor: 80, 86, 89, 90, 100.
  int cc = 0;

  /// The number of streaming multiprocessors (SMs). In the facts of a launch: those that its stream may use (sms_of()
  /// in core/device.h).
  int sm_count = 0;

  /// Bytes of shared memory that one block may use after it has opted in.
  int smem_optin = 0;

  /// Bytes of shared memory of an SM, which its blocks share.
  int smem_per_sm = 0;

  /// The size of the L2 cache in bytes.
  int64_t l2_bytes = 0;

  /// The peak DRAM bandwidth in GB/s, from the memory's clock and bus width; 0 if unknown.
  int64_t dram_gbs = 0;

  /// True if float64 is much slower than on other GPUs of this compute capability (H20, H800).
  bool slow_float64 = false;
};

/// Why a variant cannot run a problem, for explanations. Callers that do not need the text pass a null Reason*, which
/// saves its formatting.
struct Reason {
  char text[192] = {0};  // null-terminated; a longer text is cut off
};

/// A kernel family: the kernels that share a main loop and a directory of kernels/. Nothing depends on the numeric
/// values; the learned cost model has codes of its own (dispatch/models/learned.h).
enum class Family : int32_t {
  kAdded,  // kernels that another library registers (dispatch/registry.h); they run only when a caller names them
  kSm80Mma,
  kSm80Split,
  kSm90Wgmma,
  kSm90Split,
  kSm90SplitSkinny,
  kSm90Skinny,
  kSkinny,
  kGemv,
  kBatchedMma,
  kSimtSkinny,
  kSimtGemv,
  kTinyBatch,
  kInt8,  // the int8 kernels of sm90_wgmma and sm90_skinny
  kSm90Dmma,
  kBatchedGemv,
};

/// How a kernel multiplies and adds. kAccumulateF32, kAccumulateF16 and kAccumulateF64: products of the operands'
/// elements, accumulated in float32, float16 or float64. kSplitF32 and kScaledF32: float32 operands on tensor cores,
/// each split into three bfloat16 planes, or into two float16 planes after its rows (of A) or columns (of B) are scaled
/// by powers of two; the dispatcher chooses these kernels only where Problem::float32 is kSplit. kInt8: int8 operands
/// with int32 sums, which are exact in any order.
enum class Arithmetic : int32_t {
  kAccumulateF32 = 0,
  kAccumulateF16 = 1,
  kSplitF32 = 2,
  kScaledF32 = 3,
  kInt8 = 4,
  kAccumulateF64 = 5
};
constexpr bool takes_planes(Arithmetic arithmetic) {
  return arithmetic == Arithmetic::kSplitF32 || arithmetic == Arithmetic::kScaledF32;
}

/// The class of a kernel's sums, by their summation order. Any two kernels of one class, except kVaries, give the same
/// bits for an element of alpha * A @ B + beta * C + bias. The bits depend neither on the other rows of A nor on where
/// A lies in memory (tests/kernels/test_gpu_invariance.py).
enum class Sums : int32_t {
  /// The order depends on M, the batch, the alignment or the device, or was never examined.
  kVaries = 0,
  /// One float32 accumulator on tensor cores, which takes 16 k at a time in ascending order of k.
  kInOrder = 1,
  /// One such accumulator for each of two slices of K, which are halves of its steps of 128 k. The two are added.
  kTwoSlices = 2,
  /// The same with four slices, quarters of the steps, which are added in ascending order of k.
  kFourSlices = 3,
  /// A float32 sum from bfloat16 planes by wgmma, 64 k at a time in ascending order of k (tile/split_planes.h).
  kPlanes = 4,
  /// The same by mma.sync, which adds the five smaller products of planes in another order.
  kPlanesMma = 5,
  /// One float32 fma after the other on CUDA cores, in ascending order of k. float64 operands: in float64. complex64:
  /// one such chain for the real part, two for the imaginary part.
  kChain = 6,
  /// A float32 accumulator as in kInOrder for each kCarriedK k. They are added in float32, in ascending order of k.
  kCarried = 7,
};

/// The k that one accumulator adds up in a kernel of Sums::kCarried. A tensor core truncates as it accumulates, so the
/// error of an accumulator grows with the k that it adds up; additions in float32 round to nearest. Up to this K, sums
/// of the classes kInOrder and kCarried have the same bits. kernels/NOTES.md has the errors of other lengths.
constexpr int64_t kCarriedK = 128;

// cudaStream_t and cudaError_t (0 is success) without the CUDA headers.
using Stream = void*;
using Status = int;

/// Declares a function that a .cu file defines and that returns a Status. A build without device code
/// (HGEMM_CUDA_ARCHS=none) compiles no .cu files. Its decisions and explanations are the same, and each of these
/// functions returns kNotBuilt.
#ifdef HGEMM_NO_DEVICE_CODE
constexpr Status kNotBuilt = 209;  // cudaErrorNoKernelImageForDevice
#define HGEMM_IN_CUDA(...)    \
  inline Status __VA_ARGS__ { \
    return kNotBuilt;         \
  }
#else
#define HGEMM_IN_CUDA(...) Status __VA_ARGS__;
#endif

/// A kernel's tile configuration: an output tile of bm x bn elements that one block computes, k-tiles of bk elements,
/// pipeline stages, threads per block. A family whose blocks work otherwise says in its `Line` what the fields mean.
struct Tile {
  int bm, bn, bk, stages, threads;
};

/// How a kernel divides a GEMM among blocks, beyond its Tile. The learned cost model takes these as features
/// (dispatch/models/learned.h).
struct Cut {
  /// The blocks of a cluster, which compute neighbouring output tiles: cluster_m along M by cluster_n along N.
  int cluster_m = 1, cluster_n = 1;

  /// Slices of K. Each is computed by a block of its own, in the same cluster.
  int slices = 1;

  /// Two consumer warpgroups alternate: the epilogue of one output tile overlaps the main loop of the next.
  bool pingpong = false;

  /// Another kernel first writes the operands to the workspace, as padded copies or as bfloat16 planes.
  bool pads = false;

  /// The kernel computes the transpose of D: the rows of an output tile are columns of D.
  bool swaps = false;

  /// Tiles of another shape cover the last columns of D (the residue).
  bool edges = false;

  /// Several blocks compute parts of K of one output tile and combine them through the workspace: stream-K or split-K.
  bool shares_k = false;
};

/// One kernel, as constant data. A variant is declared once, by one line in the list of its family
/// (kernels/<family>/list.h). Everything else, such as the dispatcher, the ops and the tests, iterates over the
/// variants (dispatch/registry.h).
struct Variant {
  /// The name by which users force the variant and reports show it, such as "sm80_mma_128x128x64_w64x64_s3".
  const char* name;

  /// The family whose list declares the variant.
  Family family;

  /// How the kernel multiplies and adds.
  Arithmetic arithmetic;

  /// The variant runs on devices with min_cc <= DeviceFacts::cc <= max_cc.
  int min_cc;
  int max_cc;

  /// The dtypes of A and B that the variant takes, a bit set: bit 1 << static_cast<int>(DType).
  uint32_t dtypes;

  /// The tile configuration.
  Tile tile;

  /// Bytes of shared memory per block, at most. The variant runs only where DeviceFacts::smem_optin allows as much.
  int smem_bytes;

  /// The kernel always splits K across blocks that do not form a cluster. It is false for kernels that split K for some
  /// problems only.
  bool splits_k;

  /// Returns true if the variant can run the problem on the device. Architecture, dtype and shared memory are checked
  /// beforehand, from the fields above. Where the function returns false and `why` is not null, it names the
  /// requirement and the actual value in `why`.
  ///
  /// NOTE: The function must not depend on alpha and beta, nor on more of an address than its alignment, because
  /// decisions are cached without them.
  bool (*eligible)(const Problem&, const DeviceFacts&, Reason* why);

  /// Returns the size in bytes of the workspace, scratch memory on the device, that `launch` needs; 0 for none. It is
  /// at most Problem::most_workspace if the variant is eligible.
  size_t (*workspace)(const Problem&, const DeviceFacts&);

  /// Returns the predicted time on the device in microseconds, comparable across variants and with the predictions for
  /// torch (dispatch/models/torch_model.h).
  double (*predict_us)(const Problem&, const DeviceFacts&);

  /// Enqueues the GEMM on `stream` and returns a cudaError_t. It neither synchronises nor allocates. `workspace` has
  /// the size that the function above returns, with undefined contents.
  Status (*launch)(const Problem&, const DeviceFacts&, void* workspace, Stream stream);

  /// Returns true if `launch` also runs the problem, which is eligible, with `gated` set. Null if it never does.
  bool (*gates)(const Problem&) = nullptr;

  /// How the kernel divides the GEMM among blocks, for the learned cost model.
  Cut cut = {};

  /// The class of the kernel's sums for problems whose `numerics` is not kFast.
  Sums sums = Sums::kVaries;

  /// The dispatcher chooses the kernel only where `numerics` is not fast.
  bool only_invariant = false;

  /// The kernel sums in the class kFourSlices where the problem's promise is that class (core/slices.h).
  bool also_four_slices = false;

  /// The kernel approximates the activations other than relu (tile/fast_activation.cuh), so their bits differ from
  /// those of kernels that do not.
  bool fast_activations = false;
};

// A variant's id is its index in dispatch/registry.h, from 0 on. Wherever an id is accepted, so are these two values.
constexpr int kAuto = -1;   // the dispatcher chooses
constexpr int kTorch = -2;  // torch's own kernel, usually cuBLAS

}  // namespace hgemm
