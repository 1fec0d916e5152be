#include "torch/cublas_gemm.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <utility>

#include "dispatch/c_api.h"
#include "torch/torch_symbols.h"

// What is used of cuBLASLt's C API, whose headers not every toolkit brings. Weak: a CPU build of torch has no cuBLAS.
extern "C" {
struct CublasLtResult {  // cublasLtMatmulHeuristicResult_t
  uint64_t algorithm[8];
  size_t workspace_bytes;
  int status;
  float waves;
  int reserved[4];
};
#define HGEMM_CUBLASLT(name, ...) __attribute__((weak)) int cublasLt##name(__VA_ARGS__)
HGEMM_CUBLASLT(MatmulDescCreate, void** desc, int compute_type, int scale_type);
HGEMM_CUBLASLT(MatmulDescSetAttribute, void* desc, int attribute, const void* value, size_t bytes);
HGEMM_CUBLASLT(MatmulDescDestroy, void* desc);
HGEMM_CUBLASLT(MatrixLayoutCreate, void** layout, int type, uint64_t rows, uint64_t cols, int64_t ld);
HGEMM_CUBLASLT(MatrixLayoutDestroy, void* layout);
HGEMM_CUBLASLT(MatmulPreferenceCreate, void** preference);
HGEMM_CUBLASLT(MatmulPreferenceSetAttribute, void* preference, int attribute, const void* value, size_t bytes);
HGEMM_CUBLASLT(MatmulPreferenceDestroy, void* preference);
HGEMM_CUBLASLT(MatmulAlgoGetHeuristic, void* handle, void* desc, void* a, void* b, void* c, void* d, void* preference,
               int requested, CublasLtResult* results, int* found);
HGEMM_CUBLASLT(Matmul, void* handle, void* desc, const void* alpha, const void* a, void* a_layout, const void* b,
               void* b_layout, const void* beta, const void* c, void* c_layout, void* d, void* d_layout,
               const uint64_t* algorithm, void* workspace, size_t workspace_bytes, void* stream);
#undef HGEMM_CUBLASLT

// Of torch's stable ABI, for CUDA. A handle of cuBLAS is one of cuBLASLt as well.
__attribute__((weak)) AOTITorchError torch_get_current_cuda_blas_handle(void** handle);
}

namespace hgemm {
namespace {

// cuBLAS's enumerations, by value.
constexpr int kComputeF32 = 68, kTypeF32 = 0, kTypeF16 = 2, kTypeBF16 = 14;
constexpr int kAttributeTransposeA = 3, kAttributeTransposeB = 4;
constexpr int kPreferenceWorkspace = 1, kPreferenceAlignment[] = {5, 6, 7, 8};  // of A, B, C, D

constexpr int32_t kWidestAlign = 16;  // bytes; no algorithm asks for more

/// As much as torch gives cuBLAS.
constexpr uint64_t workspace_limit(int cc) {
  return cc >= 90 ? uint64_t{32} << 20 : (uint64_t{8} << 20) + (uint64_t{128} << 10);
}

bool has_symbols() {
  // NOTE: the setter is not called. Where it takes two flags, 0 is the default of what at_fp16_reduction returns.
  return cublasLtMatmulDescCreate && cublasLtMatmulDescSetAttribute && cublasLtMatmulDescDestroy &&
         cublasLtMatrixLayoutCreate && cublasLtMatrixLayoutDestroy && cublasLtMatmulPreferenceCreate &&
         cublasLtMatmulPreferenceSetAttribute && cublasLtMatmulPreferenceDestroy && cublasLtMatmulAlgoGetHeuristic &&
         cublasLtMatmul && torch_get_current_cuda_blas_handle && at_global_context && at_fp16_reduction &&
         at_bf16_reduction && at_set_fp16_reduction && at_fp16_accumulation && at_deterministic && at_blas_backend &&
         at_tuning_context && at_is_tunable_op_enabled;
}

bool is_available() {
  static const bool available = has_symbols() && std::getenv("CUBLAS_WORKSPACE_CONFIG") == nullptr;
  return available;
}

/// Whether torch's settings are those under which it calls cuBLAS with nothing but defaults.
bool has_default_settings(DType dtype) {
  constexpr uint8_t kAllowReducedPrecision = 0;
  constexpr int8_t kCublaslt = 2;  // at::BlasBackend; below it: the default, and cuBLAS
  if (!is_available()) return false;
  void* context = at_global_context();
  const uint8_t reduction = dtype == DType::kF16 ? at_fp16_reduction(context) : at_bf16_reduction(context);
  return reduction == kAllowReducedPrecision && !at_fp16_accumulation(context) && !at_deterministic(context) &&
         at_blas_backend(context) < kCublaslt && !at_is_tunable_op_enabled(at_tuning_context());
}

/// Whether the call is torch.mm of two matrices of the problem's shape, for torch as well.
bool is_mm(const Call& call, const Canonical& canonical) {
  const Problem& p = canonical.problem;
  const bool is_product = call.op == Op::kMm || call.op == Op::kMatmul || call.op == Op::kLinear;
  const bool has_matrices = call.a.view.ndim >= 2 && call.b.view.ndim == 2 && p.batches() == 1;
  // Columns of one element have two descriptions, of which torch takes the other one.
  const bool has_columns = std::min(p.n, p.k) >= 2 && std::max({p.m, p.n, p.k}) <= INT32_MAX;
  return is_product && has_matrices && has_columns && !call.c && call.act == 0 && call.result_dtype() == call.a.dtype &&
         !canonical.copy_a.needed && !canonical.copy_b.needed;
}

/// An operand as cuBLAS, which is column-major, sees it.
struct Operand {
  bool transposed = false;
  int32_t ld = 0;     // 0: cannot be seen
  int32_t align = 0;  // of its address, bytes

  /// NOTE: the stride over a single row or column is not the tensor's own (dispatch/canonical.h), nor does it tell
  /// anything.
  Operand(const void* data, bool transposed, int64_t stride, int64_t rows, int64_t cols) : transposed(transposed) {
    const int64_t extent = transposed ? cols : rows;  // of the unit stride
    if ((transposed ? rows : cols) == 1) stride = extent;
    if (stride >= extent && stride <= INT32_MAX) ld = static_cast<int32_t>(stride);
    const auto address = reinterpret_cast<uintptr_t>(data);
    align = static_cast<int32_t>(std::min<uintptr_t>(address & (~address + 1), kWidestAlign));
  }
  bool operator==(const Operand&) const = default;
};

/// Everything that an algorithm is chosen by. A row-major product is a column-major one with its factors exchanged: a
/// is the second one of the call, and m its columns.
struct Key {
  int32_t m, n, k, type, device;
  Operand a, b;

  Key(const Call& call, const Problem& p)
      : m(static_cast<int32_t>(p.n)),
        n(static_cast<int32_t>(p.m)),
        k(static_cast<int32_t>(p.k)),
        type(p.dtype == DType::kF16 ? kTypeF16 : kTypeBF16),
        device(call.a.device.index),
        a(p.b.data, p.b_major() == Major::kK, p.ldb(), p.n, p.k),
        b(p.a.data, p.a_major() == Major::kMN, p.lda(), p.k, p.m) {}
  bool operator==(const Key&) const = default;

  size_t hash() const {
    uint64_t h = 0;
    for (const int32_t word : {m, n, k, a.ld, b.ld, type + device * 16 + a.transposed * 2 + b.transposed}) {
      h = (h ^ static_cast<uint32_t>(word)) * 0x9e3779b97f4a7c15u;
      h ^= h >> 29;
    }
    return static_cast<size_t>(h);
  }
};

/// A description of cuBLASLt's.
using Object = std::unique_ptr<void, int (*)(void*)>;

Object layout(int type, bool transposed, int64_t rows, int64_t cols, int64_t ld) {
  if (transposed) std::swap(rows, cols);
  void* made = nullptr;
  cublasLtMatrixLayoutCreate(&made, type, static_cast<uint64_t>(rows), static_cast<uint64_t>(cols), ld);
  return {made, cublasLtMatrixLayoutDestroy};
}

/// A product as cuBLASLt knows it, with the algorithm that it names first.
class Plan {
 public:
  Plan(const Key& key, int cc)
      : key_(key),
        desc_(nullptr, cublasLtMatmulDescDestroy),
        a_(layout(key.type, key.a.transposed, key.m, key.k, key.a.ld)),
        b_(layout(key.type, key.b.transposed, key.k, key.n, key.b.ld)),
        d_(layout(key.type, false, key.m, key.n, key.m)) {
    void *desc = nullptr, *preference = nullptr;
    cublasLtMatmulDescCreate(&desc, kComputeF32, kTypeF32);
    desc_.reset(desc);
    cublasLtMatmulPreferenceCreate(&preference);
    const Object owned(preference, cublasLtMatmulPreferenceDestroy);
    if (!desc || !preference || !a_ || !b_ || !d_) return;
    const int32_t transpose_a = key.a.transposed, transpose_b = key.b.transposed;
    cublasLtMatmulDescSetAttribute(desc, kAttributeTransposeA, &transpose_a, sizeof(transpose_a));
    cublasLtMatmulDescSetAttribute(desc, kAttributeTransposeB, &transpose_b, sizeof(transpose_b));
    const uint64_t limit = workspace_limit(cc);
    cublasLtMatmulPreferenceSetAttribute(preference, kPreferenceWorkspace, &limit, sizeof(limit));
    const int32_t alignments[] = {key.a.align, key.b.align, kWidestAlign, kWidestAlign};
    for (int i = 0; i < 4; ++i) {
      cublasLtMatmulPreferenceSetAttribute(preference, kPreferenceAlignment[i], &alignments[i], sizeof(int32_t));
    }
    int found = 0;
    serves_ = torch_get_current_cuda_blas_handle(&handle_) == AOTI_TORCH_SUCCESS &&
              cublasLtMatmulAlgoGetHeuristic(handle_, desc, a_.get(), b_.get(), d_.get(), d_.get(), preference, 1,
                                             &first_, &found) == 0 &&
              found == 1 && first_.status == 0;
  }

  const Key& key() const { return key_; }
  bool serves() const { return serves_; }
  size_t workspace_bytes() const { return first_.workspace_bytes; }
  Status run(const void* a, const void* b, void* d, void* workspace, Stream stream) const {
    const float one = 1.0f, zero = 0.0f;
    return cublasLtMatmul(handle_, desc_.get(), &one, a, a_.get(), b, b_.get(), &zero, d, d_.get(), d, d_.get(),
                          first_.algorithm, workspace, first_.workspace_bytes, stream);
  }

 private:
  Key key_;
  Object desc_, a_, b_, d_;
  CublasLtResult first_{};
  void* handle_ = nullptr;  // this thread's, as long as it lives
  bool serves_ = false;
};

constexpr size_t kPlans = 256;  // distinct products of a model: a few dozen
thread_local std::array<std::unique_ptr<const Plan>, kPlans> plans;

}  // namespace

Handle cublas_product(const Call& call, const Canonical& canonical, const DeviceFacts& facts) {
  const Problem& p = canonical.problem;
  if ((call.a.dtype != aoti_torch_dtype_float16() && call.a.dtype != aoti_torch_dtype_bfloat16()) ||
      !is_mm(call, canonical) || !has_default_settings(p.dtype)) {
    return {};
  }
  const Key key(call, p);
  if (key.a.ld == 0 || key.b.ld == 0) return {};
  std::unique_ptr<const Plan>& plan = plans[key.hash() % kPlans];
  if (!plan || !(plan->key() == key)) plan = std::make_unique<const Plan>(key, facts.cc);
  if (!plan->serves()) return {};
  Handle result = empty_contiguous(canonical.out_ndim, canonical.out_sizes, call.a.dtype, call.a.device);
  const Scratch scratch(plan->workspace_bytes(), call.a.device);
  const Status status =
      plan->run(p.b.data, p.a.data, mutable_data(result.get()), scratch.data(), current_stream(call.a.device));
  return status == 0 ? std::move(result) : Handle();
}

}  // namespace hgemm

int hgemm_calls_cublas() {
  return hgemm::is_available();
}
