#include "dispatch/canonical.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace hgemm {
namespace {

/// One batch dimension of the output, and the stride of each operand along it (0: broadcast).
struct BatchDim {
  int64_t size;
  int64_t a, b, c;
};

/// The strides of all operands over the output's dimensions: batch dimensions, outermost first, then rows and columns.
struct Gemm {
  int64_t m, n, k;
  int64_t a_row, a_col, b_row, b_col;
  int64_t c_row, c_col;
  int ndim;
  bool has_wide_elements;
  BatchDim dims[kMaxDims];
  bool rows_are_batch = false;  // exchange_rows() applied
};

std::string shape_of(const TensorView& t) {
  return shape_text(t.ndim, t.sizes);
}

/// The operands' names and shapes: "a (4, 5) and b (6, 3)".
std::string shapes_of(const Operands& o) {
  const ArgumentNames names = argument_names(o.op);
  return std::string(names.a) + " " + shape_of(o.a) + " and " + names.b + " " + shape_of(o.b);
}

bool fail(const Operands& o, const std::string& message, Canonical* out) {
  out->error = std::string("hgemm::") + op_name(o.op) + ": " + message;
  return false;
}

bool check_ranks(const Operands& o, Canonical* out) {
  if (o.a.ndim > kMaxDims || o.b.ndim > kMaxDims) {
    return fail(o, shapes_of(o) + ": both must be at most " + std::to_string(kMaxDims) + "-D", out);
  }
  if (is_linear(o.op)) {
    if (o.a.ndim < 1) return fail(o, "x " + shape_of(o.a) + " must be at least 1-D", out);
    if (o.b.ndim == 1 || o.b.ndim == 2) return true;
    return fail(o, "weight " + shape_of(o.b) + " must be 2-D, or 1-D for one output feature", out);
  }
  if (o.op == Op::kMatmul) {
    if (o.a.ndim >= 1 && o.b.ndim >= 1) return true;
    return fail(o, shapes_of(o) + ": both must be at least 1-D", out);
  }
  const int rank = o.op == Op::kMm || o.op == Op::kAddmm ? 2 : 3;
  if (o.a.ndim != rank || o.b.ndim != rank) {
    return fail(o, shapes_of(o) + ": both must be " + std::to_string(rank) + "-D", out);
  }
  if (rank == 2 || o.a.sizes[0] == o.b.sizes[0]) return true;
  return fail(o,
              shapes_of(o) + ": batch sizes must match, got " + std::to_string(o.a.sizes[0]) + " and " +
                  std::to_string(o.b.sizes[0]),
              out);
}

/// Reads the matrices of a and b, which are their last two dimensions. A 1-D a is a row, a 1-D b is a column.
bool read_matrices(const Operands& o, Gemm* g, Canonical* out) {
  const TensorView &a = o.a, &b = o.b;
  const bool a_is_vector = a.ndim == 1, b_is_vector = b.ndim == 1;
  g->m = a_is_vector ? 1 : a.sizes[a.ndim - 2];
  g->k = a.sizes[a.ndim - 1];
  g->a_row = a_is_vector ? 0 : a.strides[a.ndim - 2];
  g->a_col = a.strides[a.ndim - 1];

  const bool transposed = is_linear(o.op) || b_is_vector;  // the reduction runs along b's last dimension
  const int k_dim = b.ndim - (transposed ? 1 : 2), n_dim = b.ndim - (transposed ? 2 : 1);
  const int64_t b_k = b.sizes[k_dim];
  g->n = b_is_vector ? 1 : b.sizes[n_dim];
  g->b_row = b.strides[k_dim];
  g->b_col = b_is_vector ? 0 : b.strides[n_dim];
  if (g->k == b_k) return true;
  const char* const which = is_linear(o.op) ? ": last" : ": inner";
  return fail(
      o, shapes_of(o) + which + " dimensions must match, got " + std::to_string(g->k) + " and " + std::to_string(b_k),
      out);
}

/// Reads the batch dimensions, and sets the shape of the output.
bool read_batch(const Operands& o, Gemm* g, Canonical* out) {
  const TensorView &a = o.a, &b = o.b;
  const int a_batch = std::max(a.ndim - 2, 0);
  const int b_batch = is_linear(o.op) ? 0 : std::max(b.ndim - 2, 0);
  g->ndim = std::max(a_batch, b_batch);
  for (int i = 0; i < g->ndim; ++i) {
    const int ia = i - (g->ndim - a_batch), ib = i - (g->ndim - b_batch);
    const int64_t size_a = ia >= 0 ? a.sizes[ia] : 1, size_b = ib >= 0 ? b.sizes[ib] : 1;
    if (size_a != size_b && size_a != 1 && size_b != 1) {
      return fail(o,
                  shapes_of(o) + ": batch dimensions must broadcast, got " + std::to_string(size_a) + " and " +
                      std::to_string(size_b),
                  out);
    }
    BatchDim& d = g->dims[i];
    d.size = size_a == 1 ? size_b : size_a;
    d.a = size_a == 1 ? 0 : a.strides[ia];
    d.b = size_b == 1 ? 0 : b.strides[ib];
    d.c = 0;
    out->out_sizes[i] = d.size;
  }
  out->out_ndim = g->ndim;
  if (a.ndim > 1) out->out_sizes[out->out_ndim++] = g->m;
  if (b.ndim > 1) out->out_sizes[out->out_ndim++] = g->n;
  return true;
}

/// Broadcasts c, if there is one, to the output.
bool read_c(const Operands& o, Gemm* g, Canonical* out) {
  g->c_row = g->c_col = 0;
  if (o.c == nullptr) return true;
  const TensorView& c = *o.c;
  const bool to_weight = is_linear(o.op);
  const int result_ndim = to_weight ? o.b.ndim - 1 : out->out_ndim;
  const int64_t* const result_sizes = to_weight ? o.b.sizes : out->out_sizes;
  bool fits = c.ndim <= result_ndim;
  for (int i = 0; fits && i < c.ndim; ++i) {
    fits = c.sizes[i] == 1 || c.sizes[i] == result_sizes[result_ndim - c.ndim + i];
    const int at = out->out_ndim - c.ndim + i;
    const int64_t stride = c.sizes[i] == 1 ? 0 : c.strides[i];
    if (at < g->ndim) {
      g->dims[at].c = stride;
    } else if (at == g->ndim && o.a.ndim > 1) {
      g->c_row = stride;
    } else {
      g->c_col = stride;
    }
  }
  if (fits) return true;
  return fail(o,
              std::string(argument_names(o.op).c) + " " + shape_of(c) + " must be expandable to " +
                  (to_weight ? "the output features " : "the result's shape ") + shape_text(result_ndim, result_sizes),
              out);
}

/// Replaces an operand by a contiguous copy. `stride` selects the operand, `row` and `col` are its matrix strides. The
/// copy still broadcasts along dimensions that the operand broadcasts along, unless `write_out_broadcasts` is set.
void replace_by_copy(Gemm* g, int64_t BatchDim::* stride, int64_t rows, int64_t* row, int64_t cols, int64_t* col,
                     bool write_out_broadcasts, Copy* copy) {
  copy->needed = true;
  copy->ndim = g->ndim + 2;
  int64_t step = rows * cols;
  for (int i = g->ndim - 1; i >= 0; --i) {
    BatchDim& d = g->dims[i];
    copy->sizes[i] = write_out_broadcasts || d.*stride != 0 ? d.size : 1;
    copy->strides[i] = d.*stride;
    d.*stride = copy->sizes[i] == 1 ? 0 : step;
    step *= copy->sizes[i];
  }
  copy->sizes[g->ndim] = rows;
  copy->strides[g->ndim] = *row;
  copy->sizes[g->ndim + 1] = cols;
  copy->strides[g->ndim + 1] = *col;
  *row = cols;
  *col = 1;
}

void replace_a(Gemm* g, bool write_out_broadcasts, Canonical* out) {
  replace_by_copy(g, &BatchDim::a, g->m, &g->a_row, g->k, &g->a_col, write_out_broadcasts, &out->copy_a);
}

void replace_b(Gemm* g, bool write_out_broadcasts, Canonical* out) {
  replace_by_copy(g, &BatchDim::b, g->k, &g->b_row, g->n, &g->b_col, write_out_broadcasts, &out->copy_b);
}

/// Whether b is the transpose of a, in the same memory and in every matrix of the batch.
bool is_b_a_transposed(const Operands& o, const Gemm& g) {
  if (o.a.data != o.b.data || o.a.is_conjugated != o.b.is_conjugated) return false;
  if (g.m != g.n || g.a_row != g.b_col || g.a_col != g.b_row) return false;
  return std::all_of(g.dims, g.dims + g.ndim, [](const BatchDim& d) { return d.a == d.b; });
}

bool read(const Operands& o, Gemm* g, Canonical* out) {
  g->has_wide_elements = is_wide(o.a.dtype);
  return check_ranks(o, out) && read_matrices(o, g, out) && read_batch(o, g, out) && read_c(o, g, out);
}

/// Whether batch dimension `d`, which must be the innermost, can be folded into m: b does not vary along it, and the
/// rows of a and c continue along it with the same stride.
bool folds_into_rows(const Gemm& g, const BatchDim& d) {
  constexpr int64_t kTiny = 32;  // as is_tiny_batch() of core/cost.h has it
  if (g.has_wide_elements && std::max({g.m, g.n, g.k}) <= kTiny) return false;
  if (d.b != 0 || d.a == 0 || g.m * d.size > std::numeric_limits<int32_t>::max()) return false;
  if (g.m != 1) return d.a == g.m * g.a_row && d.c == g.m * g.c_row;
  return g.a_col == 1 || d.a == 1 || g.k <= 1;  // the stride of a single row is still free
}

/// Drops batch dimensions of size one, folds the innermost dimensions into m where possible, and merges neighbouring
/// dimensions that one stride can describe.
void merge(Gemm* g) {
  BatchDim kept[kMaxDims];  // innermost first
  int count = 0;
  for (int i = g->ndim - 1; i >= 0; --i) {
    const BatchDim& d = g->dims[i];
    if (d.size == 1) continue;
    if (count == 0 && folds_into_rows(*g, d)) {
      if (g->m == 1) {
        g->a_row = d.a;
        g->c_row = d.c;
      }
      g->m *= d.size;
      continue;
    }
    if (count > 0) {
      BatchDim& inner = kept[count - 1];
      if (d.a == inner.size * inner.a && d.b == inner.size * inner.b && d.c == inner.size * inner.c) {
        inner.size *= d.size;
        continue;
      }
    }
    kept[count++] = d;
  }
  g->ndim = count;
  std::reverse_copy(kept, kept + count, g->dims);
}

/// Where b does not vary along the innermost batch dimension, exchanges that dimension with the rows if it is longer:
/// the batch then has fewer and larger matrices. `F.linear` of a permuted input makes such a batch: x (S, B, K) that
/// lies in memory as (B, S, K) is S matrices of B rows, or B matrices of S rows, which lie one after the other.
void exchange_rows(Gemm* g) {
  constexpr int64_t kSmall = 64;  // kernels for batches of small matrices take these as they are
  if (g->ndim == 0 || g->m <= 1 || std::max(g->m, g->n) <= kSmall) return;
  BatchDim& d = g->dims[g->ndim - 1];
  if (d.b != 0 || d.a == 0 || d.size <= g->m || g->a_col != 1) return;
  std::swap(d.size, g->m);
  std::swap(d.a, g->a_row);
  std::swap(d.c, g->c_row);
  g->rows_are_batch = true;
}

/// Whether a (rows, cols) matrix has no unit stride, and has none that may be set to one because its extent is one.
bool lacks_unit_stride(int64_t rows, int64_t row, int64_t cols, int64_t col) {
  return row != 1 && col != 1 && rows > 1 && cols > 1;
}

/// Sets strides over an extent of at most one: one of the two strides becomes one, and the other allows vector loads.
void settle_strides(int64_t outer, int64_t* outer_stride, int64_t k, int64_t* k_stride) {
  if (outer <= 1 && (k <= 1 || *k_stride == 1)) {
    *k_stride = 1;
    *outer_stride = lone_stride(k);
  } else if (outer <= 1) {
    *outer_stride = 1;
  } else if (k <= 1) {
    *k_stride = *outer_stride == 1 ? lone_stride(outer) : 1;
  }
}

/// alpha or beta, rounded to the type in which kernels take it.
double rounded_scalar(const Operands& o, double scalar) {
  return o.a.dtype == DType::kF64 ? scalar : static_cast<double>(static_cast<float>(scalar));
}

void fill_problem(const Operands& o, const Gemm& g, Canonical* out) {
  Problem& p = out->problem;
  p.m = g.m;
  p.n = g.n;
  p.k = g.k;
  p.alpha = rounded_scalar(o, o.alpha);
  p.act = o.act;
  p.b_is_vector = o.b.ndim == 1;
  p.conjugates_a = o.a.is_conjugated;
  p.conjugates_b = o.b.is_conjugated;
  p.dtype = o.a.dtype;
  p.out_dtype = o.out_dtype;

  p.a.data = out->copy_a.needed ? nullptr : const_cast<void*>(o.a.data);
  p.a.row_stride = g.a_row;
  p.a.col_stride = g.a_col;
  settle_strides(g.m, &p.a.row_stride, g.k, &p.a.col_stride);
  p.b.data = out->copy_b.needed ? nullptr : const_cast<void*>(o.b.data);
  p.b.row_stride = g.b_row;
  p.b.col_stride = g.b_col;
  settle_strides(g.n, &p.b.col_stride, g.k, &p.b.row_stride);
  p.d.row_stride = g.m <= 1 ? lone_stride(g.n) : g.n;
  p.d.col_stride = 1;
  p.rows_are_batch = g.rows_are_batch;

  int64_t d_step = g.m * g.n, c_varies = 0;
  for (int i = g.ndim - 1, slot = 1; i >= 0; --i, --slot) {
    const BatchDim& d = g.dims[i];
    p.batch[slot] = d.size;
    p.a.batch_stride[slot] = d.a;
    p.b.batch_stride[slot] = d.b;
    p.c.batch_stride[slot] = d.c;
    p.d.batch_stride[slot] = d_step;
    d_step *= d.size;
    c_varies |= d.c;
  }
  if (g.rows_are_batch) {
    p.d.row_stride = p.batch[1] * g.n;
    p.d.batch_stride[1] = g.n;
  }

  if (o.c == nullptr || o.beta == 0.0) {
    p.c = Matrix{};
    return;
  }
  const int64_t c_row = g.m <= 1 ? 0 : g.c_row, c_col = g.n <= 1 ? 0 : g.c_col;
  if (o.beta == 1.0 && o.c->dtype == o.a.dtype && c_varies == 0 && c_row == 0 && (c_col == 1 || g.n <= 1)) {
    p.bias = o.c->data;
    p.c = Matrix{};
    return;
  }
  p.beta = rounded_scalar(o, o.beta);
  p.c_dtype = o.c->dtype;
  p.c.data = const_cast<void*>(o.c->data);
  p.c.row_stride = c_row;
  p.c.col_stride = c_col;
}

}  // namespace

const char* op_name(Op op) {
  static constexpr const char* kNames[] = {"matmul",  "mm",     "bmm",         "addmm",
                                           "baddbmm", "linear", "linear_save", "linear_gated"};
  return kNames[static_cast<int>(op)];
}

ArgumentNames argument_names(Op op) {
  switch (op) {
    case Op::kAddmm: return {"mat1", "mat2", "input"};
    case Op::kBaddbmm: return {"batch1", "batch2", "input"};
    case Op::kLinear:
    case Op::kLinearSave:
    case Op::kLinearGated: return {"x", "weight", "bias"};
    default: return {"a", "b", "c"};
  }
}

std::string shape_text(int ndim, const int64_t* sizes) {
  std::string text = "(";
  for (int i = 0; i < ndim; ++i) text += (i > 0 ? ", " : "") + std::to_string(sizes[i]);
  return text + (ndim == 1 ? ",)" : ")");
}

bool canonicalize(const Operands& o, Canonical* out) {
  Gemm g;
  if (!read(o, &g, out)) return false;
  out->problem.b_is_a_transposed = is_b_a_transposed(o, g);
  const bool copy_a = lacks_unit_stride(g.m, g.a_row, g.k, g.a_col);
  const bool copy_b = lacks_unit_stride(g.k, g.b_row, g.n, g.b_col);
  if (copy_a) replace_a(&g, false, out);
  if (copy_b) replace_b(&g, false, out);
  merge(&g);

  // More batch dimensions than a problem has: write out the broadcasts of a, else of b, else of both. With both written
  // out, one stride describes each operand.
  for (int attempt = 1; g.ndim > o.max_batch_dims && attempt <= 3; ++attempt) {
    const bool write_out_a = (attempt & 1) != 0, write_out_b = (attempt & 2) != 0;
    read(o, &g, out);
    out->copy_a.needed = out->copy_b.needed = false;
    if (copy_a || write_out_a) replace_a(&g, write_out_a, out);
    if (copy_b || write_out_b) replace_b(&g, write_out_b, out);
    merge(&g);
  }
  if (g.ndim > o.max_batch_dims) {  // only c can be the cause, and no op of torch's has such a c
    return fail(o,
                std::string(argument_names(o.op).c) + " " + shape_of(*o.c) +
                    " broadcasts along too many separate batch dimensions",
                out);
  }
  if (o.max_batch_dims > 1) exchange_rows(&g);  // torch's batches have rows of one pitch
  fill_problem(o, g, out);
  return true;
}

}  // namespace hgemm
